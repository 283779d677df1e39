#include "kernels/shim_backend.hpp"

#include <ATen/ATen.h>

#include "cuda/launch.hpp"
#include "kernels/cases.hpp"
#include "kernels/library_backend.hpp"

// Does what src/kernels/cuda.cpp does on a device, in the host's memory.

namespace outerloop::testing {

namespace {

cuda::Type type_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? cuda::Type::float32
         : dtype == at::kBFloat16 ? cuda::Type::bfloat16
         : dtype == at::kHalf     ? cuda::Type::float16
                                  : cuda::Type::float64;
}

/// The chunks of the parameters of each type there is.
struct Tables {
  explicit Tables(const Tensors& params) {
    for (const auto type : {cuda::Type::float32, cuda::Type::bfloat16, cuda::Type::float16, cuda::Type::float64}) {
      std::vector<cuda::Run> runs;
      int64_t offset = 0;
      bool any = false;
      for (const Tensor& param : params) {
        if (type_of(param.scalar_type()) == type) {
          runs.push_back({param.mutable_data_ptr(), offset, param.numel()});
          any = true;
        }
        offset += param.numel();
      }
      if (any) chunks.push_back({type, cuda::cut(runs, type)});
    }
  }

  template <class Launch>
  void for_each(const Launch& run) const {
    for (const auto& [type, list] : chunks) {
      run(cuda::Table{list.data(), static_cast<int64_t>(list.size()), type}, &list != &chunks.front().second);
    }
  }

  std::vector<std::pair<cuda::Type, std::vector<cuda::Chunk>>> chunks;
};

class ShimBackend final : public Backend {
 public:
  ShimBackend(std::string name, shim::Schedule schedule, int multiprocessors)
      : name_(std::move(name)),
        schedule_(schedule),
        multiprocessors_(multiprocessors),
        bytes_(at::zeros({static_cast<int64_t>(cuda::workspace_bytes())}, at::kByte)) {}
  std::string name() const override { return name_; }

  Tensor put_param(const Tensor& values, int64_t lead) const override { return memory_.put_param(values, lead); }
  Tensor put_flat(const Tensor& values, int64_t lead) const override { return memory_.put_flat(values, lead); }

  kernels::Summary send(const Tensors& params, const Tensor& anchor, const Tensor& wire, double weight) override {
    begin();
    Tables(params).for_each([&](const cuda::Table& table, bool goes_on) {
      cuda::send({table, anchor.const_data_ptr(), wire.mutable_data_ptr(), weight, {workspace(), goes_on}}, nullptr);
    });
    return total();
  }
  double apply(const Tensors& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
               const kernels::Step& step) override {
    begin();
    Tables(params).for_each([&](const cuda::Table& table, bool goes_on) {
      cuda::apply({.params = table,
                   .anchor = anchor.mutable_data_ptr(),
                   .velocity = velocity.defined() ? velocity.mutable_data_ptr() : nullptr,
                   .wire = wire.const_data_ptr(),
                   .inverse_weight = step.inverse_weight,
                   .lr = step.lr,
                   .momentum = step.momentum,
                   .nesterov = step.nesterov,
                   .keep_local = step.keep_local,
                   .sum = {workspace(), goes_on}},
                  nullptr);
    });
    return total().sum_squares;
  }
  void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                  const kernels::Step& step, double* sum_squares) override {
    begin();
    cuda::step_apart({.type = type_of(anchor.scalar_type()),
                      .numel = anchor.numel(),
                      .anchor = anchor.const_data_ptr(),
                      .velocity = velocity.defined() ? velocity.const_data_ptr() : nullptr,
                      .wire = wire.mutable_data_ptr(),
                      .next_velocity = velocity.defined() ? next_velocity.mutable_data_ptr() : nullptr,
                      .inverse_weight = step.inverse_weight,
                      .lr = step.lr,
                      .momentum = step.momentum,
                      .nesterov = step.nesterov,
                      .sum = {sum_squares ? workspace() : nullptr, false}},
                     nullptr);
    if (sum_squares) *sum_squares = total().sum_squares;
  }
  void delta(const Tensors& params, const Tensor& anchor, const Tensor& delta) override {
    begin();
    Tables(params).for_each([&](const cuda::Table& table, bool) {
      cuda::delta(table, anchor.const_data_ptr(), delta.mutable_data_ptr(), nullptr);
    });
  }
  void gather(const Tensors& params, const Tensor& flat) override {
    begin();
    Tables(params).for_each(
        [&](const cuda::Table& table, bool) { cuda::gather(table, flat.mutable_data_ptr(), nullptr); });
  }
  void scatter(const Tensors& params, const Tensor& flat, double keep_local) override {
    begin();
    Tables(params).for_each(
        [&](const cuda::Table& table, bool) { cuda::scatter(table, flat.const_data_ptr(), keep_local, nullptr); });
  }
  void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta,
            const kernels::Step& step) override {
    begin();
    cuda::step({.type = type_of(anchor.scalar_type()),
                .numel = anchor.numel(),
                .anchor = anchor.mutable_data_ptr(),
                .velocity = velocity.defined() ? velocity.mutable_data_ptr() : nullptr,
                .mean_delta = mean_delta.const_data_ptr(),
                .lr = step.lr,
                .momentum = step.momentum,
                .nesterov = step.nesterov},
               nullptr);
  }
  kernels::Summary summarize(const Tensor& flat) override {
    begin();
    cuda::summarize(type_of(flat.scalar_type()), flat.numel(), flat.const_data_ptr(), {workspace(), false}, nullptr);
    return total();
  }

 private:
  void begin() {
    shim::schedule(schedule_, ++seed_);
    shim::multiprocessors(multiprocessors_);
  }
  cuda::Workspace* workspace() const { return static_cast<cuda::Workspace*>(bytes_.mutable_data_ptr()); }
  kernels::Summary total() const {
    const cuda::Summary& sum = *cuda::total(workspace());
    return {sum.sum_squares, sum.non_finite, sum.fingerprint};
  }

  const std::string name_;
  const shim::Schedule schedule_;
  const int multiprocessors_;
  const Tensor bytes_;
  const LibraryBackend memory_{"memory", at::kCPU, at::kCPU};
  uint64_t seed_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Backend>> shim_backends() {
  constexpr int few = 3;    // blocks take many chunks each
  constexpr int many = 40;  // there are more blocks than threads in one
  const auto random = std::make_shared<ShimBackend>("ShimRandom", shim::Schedule::random, few);
  if (under_sanitizer) return {random};  // which sees races and bounds whatever the order
  return {std::make_shared<ShimBackend>("ShimForward", shim::Schedule::forward, few),
          std::make_shared<ShimBackend>("ShimReverse", shim::Schedule::reverse, many), random};
}

}  // namespace outerloop::testing
