#pragma once

#include <outerloop/flat_params.hpp>

#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace outerloop {

/// Elements [first, first + numel) of a parameter, row-major.
struct ParamSlice {
  Tensor param;
  std::string label;  ///< how messages call the parameter
  int64_t first;
  int64_t numel;
};

/// The parameters' memory, for kernels.
struct FlatParams::Impl {
  explicit Impl(std::vector<ParamSlice> slices);
  /// Of slices on one device, of float64 parameters or of others.
  static FlatParams of(std::vector<ParamSlice> slices);

  std::vector<ParamSlice> slices;
  std::vector<Tensor> tensors;    ///< of each slice
  std::vector<int64_t> elements;  ///< of each slice's parameter
  std::vector<size_t> first_of;   ///< the first slice of the same parameter
  std::vector<Tensor> dense;      ///< a dense copy of each strided parameter, at its first slice
  kernels::Params memory;
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;

  at::Device device() const { return memory.device; }
  /// The parameters as they are now: addresses looked up, dense copies brought up to date. Throws c10::Error, naming
  /// the parameter, if a type, device or number of elements has changed.
  kernels::Params& pull();
  /// After writing through what pull() gave: dense copies go back to their parameters, version counters move on.
  void push();
  Tensor gather(at::Device to);  ///< a new flat vector there, on device() or on the CPU, holding the parameters

 private:
  void* memory_of(size_t slice);
};

}  // namespace outerloop
