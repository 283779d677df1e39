#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

/// A round of every fragment is a round of the whole: how parameters are divided shows nowhere.

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;

Tensor values(at::IntArrayRef shape, double phase) {
  const int64_t n = c10::multiply_integers(shape);
  return torch::sin(torch::arange(n, torch::kFloat) * 0.7 + phase).reshape(shape);
}

/// One large parameter, a strided one, and small ones of other types.
std::vector<Tensor> model() {
  std::vector<Tensor> params{parameter(values({40, 5}, 0)), values({6, 30}, 1).t().detach().set_requires_grad(true),
                             parameter(values({3}, 2).to(torch::kBFloat16)),
                             parameter(values({7}, 3).to(torch::kDouble))};
  for (int i = 4; i < 12; ++i) params.push_back(parameter(values({2, i}, i)));
  return params;
}

/// Everything in it depends on everything that went before: momentum inside and outside, rounds after every second
/// step, parameters that are frozen, thawed and added on the way.
std::vector<Tensor> trained(const std::shared_ptr<Communicator>& comm, const FragmentPlan& plan) {
  const std::vector<Tensor> params = model();
  const std::vector<Tensor> first(params.begin(), params.end() - 2), later(params.end() - 2, params.end());
  DiLoCoOptimizer optimizer(SGD(first, torch::optim::SGDOptions(0.1).momentum(0.5)), comm,
                            {.sync_every = 1000,
                             .outer_lr = 0.7,
                             .outer_momentum = 0.6,
                             .streaming = {.fragments = plan, .keep_local = 0.25}});
  for (int step = 1; step <= 12; ++step) {
    if (step == 4) optimizer.add_param_group(OptimizerParamGroup(later));
    if (step == 6) params[0].set_requires_grad(false);
    if (step == 9) params[0].set_requires_grad(true);
    for (const Tensor& param : params) {
      const bool trains = param.requires_grad();
      const Tensor gradient = values(param.sizes(), step + 100 * comm->rank()).to(param.scalar_type());
      if (trains) param.mutable_grad() = gradient;
    }
    optimizer.step();
    if (step % 2 == 0) optimizer.sync();
  }
  std::vector<Tensor> all = optimizer.anchors();
  for (const Tensor& param : params) all.push_back(param.detach().clone());
  return all;
}

TEST(Fragments, OfAnyPlanGiveTheBitsOfTheWhole) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto expected = trained(comm, FragmentPlan::whole());
    for (const FragmentPlan& plan : {FragmentPlan::sequential(3), FragmentPlan::strided(2), FragmentPlan::strided(5)}) {
      const auto actual = trained(comm, plan);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(same_bits(actual[i], expected[i])) << plan.describe() << ", tensor " << i;
      }
    }
  });
}

TEST(Fragments, TravelOneAtATime) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::vector<int64_t> bytes;
    std::vector<int64_t> steps;
    DiLoCoOptions options{.sync_every = 10, .streaming = {.fragments = FragmentPlan::sequential(4)}};
    options.sync.on_sync = [&](const SyncReport& report) {
      bytes.push_back(report.wire_bytes);
      steps.push_back(report.inner_step);
    };
    const Tensor param = parameter(values({400}, 0));
    DiLoCoOptimizer optimizer(SGD({param}, 0.1), comm, options);
    for (int step = 1; step <= 20; ++step) {
      param.mutable_grad() = values({400}, step);
      optimizer.step();
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{3, 5, 8, 10, 13, 15, 18, 20}));
    EXPECT_EQ(bytes, std::vector<int64_t>(8, all_reduce_bytes(400, 2)));
  });
}

}  // namespace
}  // namespace outerloop::testing
