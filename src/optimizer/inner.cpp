#include "optimizer/inner.hpp"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>

#include "params/check.hpp"

namespace outerloop::optimizer {

namespace {

/// body(index, parameter) over all groups.
template <class Body>
void for_each_parameter(const Groups& groups, const Body& body) {
  size_t index = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& param : group.params()) body(index++, param);
  }
}

}  // namespace

bool same_sizes(const Groups& groups, const Groups& inner) {
  return std::equal(groups.begin(), groups.end(), inner.begin(), inner.end(),
                    [](const auto& a, const auto& b) { return a.params().size() == b.params().size(); });
}

bool same_tensors(const Groups& groups, const Groups& inner) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  return std::equal(groups.begin(), groups.end(), inner.begin(), inner.end(), [&](const auto& a, const auto& b) {
    return std::equal(a.params().begin(), a.params().end(), b.params().begin(), b.params().end(), same);
  });
}

void hand_on_options(const Groups& groups, torch::optim::Optimizer& inner) {
  for (size_t i = 0; i < groups.size(); ++i) inner.param_groups()[i].set_options(groups[i].options().clone());
}

void check_takes_parameters(const torch::optim::Optimizer& inner) {
  TORCH_CHECK(!dynamic_cast<const torch::optim::Adagrad*>(&inner),
              "add_param_group: libtorch's Adagrad makes its state when it is constructed and cannot take parameters "
              "after that; construct it with all groups");
  TORCH_CHECK(!dynamic_cast<const torch::optim::LBFGS*>(&inner),
              "add_param_group: LBFGS has exactly one group of parameters");
}

void hand_on_parameters(const Groups& groups, torch::optim::Optimizer& inner) {
  check_takes_parameters(inner);
  Groups& own = inner.param_groups();
  while (own.size() > groups.size()) own.pop_back();
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i < own.size()) {
      own[i].params() = groups[i].params();
    } else {
      inner.add_param_group(groups[i]);
    }
  }
}

std::vector<at::Tensor> parameters(const Groups& groups) {
  std::vector<at::Tensor> all;
  for_each_parameter(groups, [&](size_t, const at::Tensor& param) { all.push_back(param); });
  return all;
}

std::vector<at::Tensor> trainable(const Groups& groups) {
  std::vector<at::Tensor> some;
  for_each_parameter(groups, [&](size_t, const at::Tensor& param) {
    if (param.requires_grad()) some.push_back(param);
  });
  return some;
}

std::vector<std::vector<ParamSlice>> slices(const Groups& groups, const std::vector<std::string>& names,
                                            const FragmentPlan& plan) {
  const std::vector<at::Tensor> params = parameters(groups);
  std::vector<FragmentPlan::Size> sizes;
  for (const at::Tensor& param : params) {
    const int64_t wire_bytes = param.scalar_type() == at::kDouble ? sizeof(double) : sizeof(float);
    sizes.push_back({param.numel(), wire_bytes, !param.requires_grad()});
  }
  std::vector<std::vector<ParamSlice>> fragments;
  for (const std::vector<Slice>& cut : plan.cut(sizes)) {
    std::vector<ParamSlice>& fragment = fragments.emplace_back();
    for (const auto& [index, begin, end] : cut) {
      fragment.push_back({params[index], params::label(index, names), begin, end - begin});
    }
  }
  return fragments;
}

std::vector<int64_t> without_grad(const Groups& groups) {
  std::vector<int64_t> some;
  for_each_parameter(groups, [&](size_t index, const at::Tensor& param) {
    if (param.requires_grad() && !param.grad().defined()) some.push_back(static_cast<int64_t>(index));
  });
  return some;
}

std::string describe(const Groups& groups, const std::vector<std::string>& names) {
  std::string text;
  for_each_parameter(groups, [&](size_t index, const at::Tensor& param) {
    text += c10::str(params::label(index, names), ": ", param.scalar_type(), " ", param.sizes(),
                     param.requires_grad() ? "\n" : ", frozen\n");
  });
  return text;
}

std::string describe_devices(const Groups& groups, const std::optional<at::Device>& anchor_device) {
  std::string text;
  std::vector<at::Device> met;
  std::string before = c10::str(at::kCPU);
  for_each_parameter(groups, [&](size_t index, const at::Tensor& param) {
    const at::Device device = param.device();
    auto found = std::find(met.begin(), met.end(), device);
    if (found == met.end()) found = met.insert(met.end(), device);
    const std::string here = device.is_cpu() ? c10::str(at::kCPU) : c10::str(device.type(), " #", found - met.begin());
    if (here != before) text += c10::str("parameters from ", index, " on: ", here, "\n");
    before = here;
  });
  if (!text.empty())
    text += c10::str("wires on ", anchor_device && anchor_device->is_cpu() ? "cpu" : "the parameters' devices", "\n");
  return text;
}

}  // namespace outerloop::optimizer
