#pragma once

#include <outerloop/flat_params.hpp>

#include "kernels/kernels.hpp"

namespace outerloop {

/// The parameters' memory, for kernels.
struct FlatParams::Impl {
  std::vector<Tensor> tensors;
  std::vector<std::string> labels;  ///< how messages call each
  std::vector<Tensor> dense;        ///< a dense copy of each strided parameter, undefined for the others
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
};

}  // namespace outerloop
