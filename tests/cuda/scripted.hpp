#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <vector>

#include "support/tensors.hpp"

namespace outerloop::testing {

/// Values that use every bit of their type, a function of these numbers alone.
inline Tensor scripted_values(at::IntArrayRef shape, at::ScalarType type, int rank, int64_t step, size_t index) {
  return normal(shape, 1'000'000 * rank + 1000 * step + index).to(type);
}

struct ScriptedOptions : torch::optim::OptimizerCloneableOptions<ScriptedOptions> {
  double get_lr() const override { return 0; }
  void set_lr(double) override {}
};

/// An inner optimizer that needs none of torch's kernels: step t puts scripted_values(rank, t) in place of the
/// parameters, on a GPU by copies from pinned memory on the current stream, for which it does not wait.
class Scripted final : public torch::optim::Optimizer {
 public:
  /// At step `nan_at` the first parameter gets a NaN.
  Scripted(std::vector<Tensor> params, int rank, int64_t nan_at = 0)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<ScriptedOptions>()),
        rank_(rank),
        nan_at_(nan_at) {}

  Tensor step(LossClosure = nullptr) override {
    ++step_;
    size_t index = 0;
    for (const auto& group : param_groups_) {
      for (const Tensor& param : group.params()) {
        Tensor values = scripted_values(param.sizes(), param.scalar_type(), rank_, step_, index);
        if (step_ == nan_at_ && index == 0) values.view(-1)[0] = NAN;
        if (param.is_cuda()) values = values.pin_memory();
        param.detach().copy_(values, /*non_blocking=*/true);
        ++index;
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override { archive.write("step", c10::IValue(step_)); }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue step;
    archive.read("step", step);
    step_ = step.toInt();
  }

 private:
  const int rank_;
  const int64_t nan_at_;
  int64_t step_ = 0;
};

}  // namespace outerloop::testing
