#include <torch/nn/utils/clip_grad.h>
#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// Between rounds a wrapper is its inner optimizer: the same parameters and losses, bit for bit.

namespace outerloop::testing {
namespace {

class Trajectory : public ::testing::TestWithParam<Inner> {};
INSTANTIATE_TEST_SUITE_P(All, Trajectory, ::testing::ValuesIn(inners()), name_of);

TEST_P(Trajectory, EqualsTheBareOptimizerBitForBitBetweenRounds) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Mlp wrapped, bare;
    DiLoCoOptimizer optimizer(GetParam().make(wrapped.params), comm, {.sync_every = 3});
    const auto reference = GetParam().make(bare.params);
    for (int64_t step = 1; step <= 8; ++step) {
      const Tensor loss = closure_step(optimizer, wrapped, step, comm->rank());
      EXPECT_TRUE(same_bits(loss, closure_step(*reference, bare, step, comm->rank()))) << "at step " << step;
      const bool round = step % 3 == 0;
      EXPECT_EQ(static_cast<bool>(same_bits(wrapped.params, bare.params)), !round) << "at step " << step;
      if (round) assign(bare.params, wrapped.params);  // a round moves the parameters and leaves the inner state
    }
  });
}

/// All but LBFGS, which has no step without a closure.
class Clipped : public ::testing::TestWithParam<Inner> {};
INSTANTIATE_TEST_SUITE_P(All, Clipped, ::testing::ValuesIn(inners_without_closure()), name_of);

TEST_P(Clipped, GradientsWithoutAClosureGiveTheTrajectoryOfTheBareOptimizer) {
  const Mlp wrapped, bare;
  LocalSGDOptimizer optimizer(GetParam().make(wrapped.params), connect_alone(), {.sync_every = 100});
  const auto reference = GetParam().make(bare.params);
  const auto train = [](Optimizer& with, const Mlp& model, int64_t step) {
    with.zero_grad();
    model.loss(step, 0).backward();
    EXPECT_GT(torch::nn::utils::clip_grad_norm_(with.param_groups()[0].params(), 0.05), 0.05);
    EXPECT_FALSE(with.step().defined());
  };
  for (int64_t step = 1; step <= 4; ++step) {
    train(optimizer, wrapped, step);
    train(*reference, bare, step);
    EXPECT_TRUE(same_bits(wrapped.params, bare.params)) << "at step " << step;
  }
}

/// Trains a bare and a wrapped SGD, each with its own scheduler, and expects equal bits and the final rate `last`.
template <class Scheduler, class Advance>
void expect_schedule_reaches_inner(std::function<Scheduler(Optimizer&)> schedule, Advance advance, double last) {
  const Mlp wrapped, bare;
  const Inner sgd = inner<torch::optim::SGD>("", torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  DiLoCoOptimizer optimizer(sgd.make(wrapped.params), connect_alone(), {.sync_every = 100});
  const auto reference = sgd.make(bare.params);
  Scheduler on_wrapper = schedule(optimizer), on_bare = schedule(*reference);
  for (int64_t step = 1; step <= 7; ++step) {
    closure_step(optimizer, wrapped, step);
    closure_step(*reference, bare, step);
    EXPECT_TRUE(same_bits(wrapped.params, bare.params)) << "at step " << step;
    advance(on_wrapper);
    advance(on_bare);
  }
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), last);
}

TEST(Scheduler, StepLrOnTheWrapperChangesTheUpdateAtTheSameStepAsOnTheInner) {
  expect_schedule_reaches_inner<torch::optim::StepLR>([](Optimizer& on) { return torch::optim::StepLR(on, 2, 0.5); },
                                                      [](auto& scheduler) { scheduler.step(); }, 0.0125);
}

TEST(Scheduler, ReduceLrOnPlateauOnTheWrapperChangesTheUpdateAtTheSameStepAsOnTheInner) {
  using Plateau = torch::optim::ReduceLROnPlateauScheduler;
  expect_schedule_reaches_inner<Plateau>([](Optimizer& on) { return Plateau(on, Plateau::min, 0.5, /*patience=*/1); },
                                         [](auto& scheduler) { scheduler.step(1.0F); }, 0.0125);
}

TEST(Lbfgs, WithoutAClosureFailsWithTheTextOfTheBareOptimizer) {
  const Mlp model;
  const auto bare = thrown_by([&] { torch::optim::LBFGS(model.params).step(nullptr); });
  LocalSGDOptimizer optimizer(torch::optim::LBFGS(model.params), connect_alone());
  EXPECT_TRUE(is(thrown_by([&] { optimizer.step(); }), bare.kind, {"LBFGS requires a closure function"}));
}

TEST(Lbfgs, CountsOneLocalStepForManyEvaluationsAndMeetsOthersOnlyAfterTheLast) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Mlp model;
    const auto tapped = std::make_shared<Tapped>(comm);
    LocalSGDOptimizer optimizer(inners().back().make(model.params), tapped, {.sync_every = 1});
    const size_t calls = tapped->calls.size();
    int evaluations = 0;
    optimizer.step([&] {
      ++evaluations;
      EXPECT_EQ(tapped->calls.size(), calls);
      optimizer.zero_grad();
      Tensor loss = model.loss(1, comm->rank());
      loss.backward();
      return loss;
    });
    EXPECT_GT(evaluations, 2);
    EXPECT_GT(tapped->calls.size(), calls);
    EXPECT_EQ(optimizer.local_steps(), 1);
    EXPECT_EQ(optimizer.rounds(), 1);
  });
}

TEST(Closure, ZeroGradOnTheWrapperClearsTheGradientsTheInnerOptimizerReads) {
  const auto param = leaf(torch::ones({3}));
  LocalSGDOptimizer optimizer(torch::optim::SGD({param}, 0.5), connect_alone());
  param.mutable_grad() = torch::full({3}, 1000.0F);
  optimizer.step([&] {
    optimizer.zero_grad();
    EXPECT_FALSE(param.grad().defined());
    Tensor loss = param.sum();
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(same_bits(param, torch::full({3}, 0.5F)));
}

TEST(Closure, RunsWithGradientsEnabledInsideANoGradGuard) {
  const Mlp model;
  LocalSGDOptimizer optimizer(torch::optim::SGD(model.params, 0.5), connect_alone());
  at::NoGradGuard no_grad;
  optimizer.step([&] {
    EXPECT_TRUE(at::GradMode::is_enabled());
    Tensor loss = model.loss(1, 0);
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(model.w1.grad().defined());
}

}  // namespace
}  // namespace outerloop::testing
