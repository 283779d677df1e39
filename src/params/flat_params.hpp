#pragma once

#include <outerloop/flat_params.hpp>

#include "kernels/cpu.hpp"

namespace outerloop {

/// The parameters' memory, for kernels.
struct FlatParams::Impl {
  std::vector<Tensor> tensors;
  std::vector<std::string> labels;  ///< how messages call each
  std::vector<Tensor> dense;        ///< a dense copy of each strided parameter, undefined for the others
  kernels::Segments segments;
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;

  /// Segments over the parameters as they are now: addresses looked up, dense copies brought up to date. Throws
  /// c10::Error, naming the parameter, if a type, device or number of elements has changed.
  const kernels::Segments& pull();
  /// After writing through the segments: dense copies go back to their parameters, version counters move on.
  void push();
};

}  // namespace outerloop
