#pragma once

#include <ATen/Tensor.h>

#include <string>
#include <vector>

namespace outerloop::params {

/// Throws c10::Error, naming the parameter by label(i), unless every tensor is a defined leaf of a floating type on a
/// device this build supports with real memory, no two are the same tensor, and no two share memory.
void check(const std::vector<at::Tensor>& params, const std::vector<std::string>& names);

/// "parameter 3 'fc.weight'", or "parameter 3" without names.
std::string label(size_t index, const std::vector<std::string>& names);

bool is_supported(at::ScalarType dtype);

}  // namespace outerloop::params
