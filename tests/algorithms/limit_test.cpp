#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// The optimizer itself converges below the limit that stability.hpp computes, and diverges above it.

namespace outerloop {
namespace {

constexpr int64_t steps_per_round = 2;

struct Row {
  std::string name;
  OuterDynamics dynamics;
  double limit;         ///< to three places
  int rounds = 200;     ///< enough to come `factor` times nearer at 0.95 of the limit, and to go as far away at 1.1
  double factor = 1e3;  ///< less where a round changes little
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

DiLoCoOptions options_of(const OuterDynamics& dynamics, double outer_lr) {
  return {.sync_every = steps_per_round,
          .outer_lr = outer_lr,
          .outer_momentum = dynamics.momentum,
          .nesterov = dynamics.nesterov,
          .streaming = {.delay = dynamics.rounds_late * steps_per_round}};
}

/// How far the anchor is from the optimum, 0, when it started at 1. Replicas have optima 1 and -1; q is 1, 0.75,
/// 0.4375.
double distance(const Row& row, double outer_lr) {
  const auto distances = testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const Tensor curvature = torch::tensor({1.0, 0.5, 0.25}, torch::kDouble);
    Tensor p = testing::parameter(torch::ones_like(curvature));
    DiLoCoOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, options_of(row.dynamics, outer_lr));
    const double optimum = comm->rank() == 0 ? 1 : -1;
    for (int64_t t = 0; t < row.rounds * steps_per_round; ++t) {
      testing::step(optimizer, p, curvature * (p.detach() - optimum));
    }
    return optimizer.anchors().at(0).abs().max().item<double>();
  });
  EXPECT_EQ(distances[0], distances[1]);
  return distances[0];
}

class Limit : public ::testing::TestWithParam<Row> {};

TEST_P(Limit, PartsConvergenceFromDivergence) {
  const Row& row = GetParam();
  const double limit = largest_stable_lr(row.dynamics);
  EXPECT_NEAR(limit, row.limit, 0.0005);
  EXPECT_LT(distance(row, 0.95 * limit), 1 / row.factor);
  EXPECT_GT(distance(row, 1.1 * limit), row.factor);
}

INSTANTIATE_TEST_SUITE_P(Without, Limit,
                         ::testing::Values(Row{"Momentum", {}, 2.0}, Row{"DelayHalf", {.momentum = 0.5}, 1.5},
                                           Row{"DelayPaper", {.momentum = 0.9}, 1.357},
                                           Row{"DelayHeavyBall", {.momentum = 0.9, .nesterov = false}, 3.8}),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(
    With, Limit,
    ::testing::Values(Row{"DelayOfARound", {.momentum = 0.9, .rounds_late = 1}, 0.253, 700, 10},
                      Row{"DelayOfTwoRounds", {.momentum = 0.9, .rounds_late = 2}, 0.081, 1300, 10},
                      Row{"DelayAndHeavyBall", {.momentum = 0.9, .nesterov = false, .rounds_late = 1}, 0.1, 1300, 10}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace outerloop
