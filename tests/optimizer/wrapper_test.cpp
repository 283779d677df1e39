#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// The wrapper as an object: moved, nested, alone.

namespace outerloop::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST(Move, AMovedWrapperGoesOnAsTheOneItWas) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto train = [&](bool move) {
      const Mlp model;
      DiLoCoOptimizer optimizer(SGD(model.params, SGDOptions(0.1).momentum(0.9)), comm, {.sync_every = 3});
      for (int64_t step = 1; step <= 4; ++step) closure_step(optimizer, model, step, comm->rank());
      if (!move) {
        for (int64_t step = 5; step <= 10; ++step) closure_step(optimizer, model, step, comm->rank());
        return copies(model.params);
      }
      DiLoCoOptimizer moved(std::move(optimizer));
      for (int64_t step = 5; step <= 7; ++step) closure_step(moved, model, step, comm->rank());
      DiLoCoOptimizer assigned(SGD({leaf(eighths({2}, 0))}, 1), connect_alone());
      assigned = std::move(moved);
      for (int64_t step = 8; step <= 10; ++step) closure_step(assigned, model, step, comm->rank());
      EXPECT_EQ(assigned.local_steps(), 10);
      EXPECT_EQ(assigned.rounds(), 3);
      return copies(model.params);
    };
    EXPECT_TRUE(same_bits(train(true), train(false)));
  });
}

TEST(Move, WrappersLiveInAVectorThatGrows) {
  std::vector<LocalSGDOptimizer> optimizers;
  std::vector<Tensor> params;
  for (int i = 0; i < 5; ++i) {
    params.push_back(leaf(torch::ones({2})));
    optimizers.emplace_back(SGD({params.back()}, 0.5), connect_alone(), LocalSGDOptions{.sync_every = 1});
  }
  for (int i = 0; i < 5; ++i) step_with_grad(optimizers[i], {params[i]}, 1);
  for (const Tensor& param : params) EXPECT_TRUE(same_bits(param, torch::full({2}, 0.5F)));
}

TEST(Nested, LocalSgdInsideDiLoCoAveragesInNodesAndThenAcross) {
  // Four ranks in two nodes {0, 1} and {2, 3}; each node averages every 2 steps, all of them meet every 4.
  const auto world = gloo_group(4), left = gloo_group(2), right = gloo_group(2);
  run_ranks(world, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    const auto node = (rank < 2 ? left : right)[rank % 2];
    const auto param = leaf(eighths({6}, 0));
    LocalSGDOptimizer inside(SGD({param}, 0.5), node, {.sync_every = 2});
    DiLoCoOptimizer optimizer(std::move(inside), comm, {.sync_every = 4, .outer_lr = 0.5, .outer_momentum = 0.5});

    // Gradients 1, 2, 3, 4: a step moves the nodes' means by 3/4 and 7/4, and the mean of all by 5/4.
    double local = 0, anchor = 0, velocity = 0;
    for (int step = 1; step <= 12; ++step) {
      step_with_grad(optimizer, {param}, rank + 1);
      local -= 0.5 * (rank + 1);
      if (step % 2 == 0) local += 0.5 * (rank + 1) * 2 - (rank < 2 ? 0.75 : 1.75) * 2;  // the node's mean
      if (step % 4 == 0) {
        const double mean_delta = 4 * 1.25;
        velocity = 0.5 * velocity + mean_delta;
        anchor -= 0.5 * (mean_delta + 0.5 * velocity);
        local = anchor;
      }
      EXPECT_TRUE(same_bits(param, eighths({6}, 0) + local)) << "rank " << rank << " step " << step;
    }
    EXPECT_EQ(dynamic_cast<const OuterLoopOptimizer&>(optimizer.inner()).rounds(), 6);
    EXPECT_EQ(optimizer.rounds(), 3);
  });
}

TEST(Nested, OptionsAndGroupsReachTheInnermostOptimizer) {
  const auto a = leaf(torch::ones({2})), b = leaf(torch::ones({2}));
  LocalSGDOptimizer inside(SGD({a}, 0.5), connect_alone(), {.sync_every = 100});
  DiLoCoOptimizer optimizer(std::move(inside), connect_alone());
  optimizer.param_groups()[0].options().set_lr(0.25);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({b}, std::make_unique<SGDOptions>(2)));
  step_with_grad(optimizer, {a, b}, 1);
  EXPECT_TRUE(same_bits(a, torch::full({2}, 0.75F)));
  EXPECT_TRUE(same_bits(b, torch::full({2}, -1.0F)));
}

TEST(Alone, DiLoCoIsALookaheadWithMomentum) {
  const auto param = leaf(eighths({6}, 0));
  DiLoCoOptimizer optimizer(SGD({param}, 0.5), connect_alone(),
                            {.sync_every = 2, .outer_lr = 0.5, .outer_momentum = 0.5});
  double anchor = 0, velocity = 0;
  for (int round = 1; round <= 6; ++round) {
    for (int step = 0; step < 2; ++step) step_with_grad(optimizer, {param}, 1);
    velocity = 0.5 * velocity + 1;
    anchor -= 0.5 * (1 + 0.5 * velocity);
    EXPECT_TRUE(same_bits(param, eighths({6}, 0) + anchor)) << "round " << round;
  }
}

TEST(Alone, LocalSgdWithRoundsKeepsExactDataAsTheBareOptimizerDoes) {
  const auto param = leaf(eighths({6}, 0));
  LocalSGDOptimizer optimizer(SGD({param}, 0.5), connect_alone(), {.sync_every = 1});
  for (int step = 1; step <= 5; ++step) step_with_grad(optimizer, {param}, 1);
  EXPECT_TRUE(same_bits(param, eighths({6}, 0) - 2.5));
}

TEST(State, OfTheWrapperIsEmptyAndThatOfTheInnerIsTheInnersOwn) {
  const Mlp model;
  DiLoCoOptimizer optimizer(SGD(model.params, SGDOptions(0.1).momentum(0.9)), connect_alone(), {.sync_every = 1});
  closure_step(optimizer, model, 1);
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_EQ(optimizer.inner().state().size(), 4);
}

}  // namespace
}  // namespace outerloop::testing
