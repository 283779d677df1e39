#pragma once

#include <torch/serialize.h>
#include <outerloop/outer_loop.hpp>

#include <sstream>
#include <string>

namespace outerloop::testing {

/// What torch::save writes for the optimizer.
inline std::string saved(const OuterLoopOptimizer& optimizer) {
  std::ostringstream stream;
  torch::save(optimizer, stream);
  return stream.str();
}

inline void load(OuterLoopOptimizer& optimizer, const std::string& file) {
  std::istringstream stream(file);
  torch::load(optimizer, stream);
}

}  // namespace outerloop::testing
