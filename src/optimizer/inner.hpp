#pragma once

#include <torch/optim/optimizer.h>
#include <outerloop/fragments.hpp>

#include <optional>
#include <string>
#include <vector>

#include "params/flat_params.hpp"

namespace outerloop::optimizer {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

/// The inner optimizer's groups have as many parameters as these, group by group: O(groups).
bool same_sizes(const Groups& groups, const Groups& inner);
bool same_tensors(const Groups& groups, const Groups& inner);

/// Throws c10::Error if the inner optimizer cannot take parameters any more.
void check_takes_parameters(const torch::optim::Optimizer& inner);

/// Hands options and, if the groups have changed, parameters on to the inner optimizer.
void hand_on_options(const Groups& groups, torch::optim::Optimizer& inner);
void hand_on_parameters(const Groups& groups, torch::optim::Optimizer& inner);

std::vector<at::Tensor> parameters(const Groups& groups);
std::vector<at::Tensor> trainable(const Groups& groups);
/// The trainable parameters as the plan divides them. Throws c10::Error if it does not fit them.
std::vector<std::vector<ParamSlice>> slices(const Groups& groups, const std::vector<std::string>& names,
                                            const FragmentPlan& plan);
std::vector<int64_t> without_grad(const Groups& groups);  ///< indices of trainable parameters whose grad is undefined

/// A line for each: "parameter 3 'fc.weight': Float [4, 3], frozen".
std::string describe(const Groups& groups, const std::vector<std::string>& names);

/// Where the parameters are, as far as replicas must agree: a line for each run of them that is not on the CPU, its
/// devices counted as they come; and where their wires are, which decides how these travel.
std::string describe_devices(const Groups& groups, const std::optional<at::Device>& anchor_device);

}  // namespace outerloop::optimizer
