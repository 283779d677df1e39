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
          .streaming = {.delay = dynamics.rounds_late * steps_per_round, .eager = dynamics.eager}};
}

/// How far the anchor is from the optimum, 0, when it started at 1. The replica's own optimum is `optimum`; q is 1,
/// 0.75, 0.4375.
double distance(const Row& row, double outer_lr, const std::shared_ptr<Communicator>& comm, double optimum) {
  const Tensor curvature = torch::tensor({1.0, 0.5, 0.25}, torch::kDouble);
  Tensor p = testing::parameter(torch::ones_like(curvature));
  DiLoCoOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, options_of(row.dynamics, outer_lr));
  for (int64_t t = 0; t < row.rounds * steps_per_round; ++t) {
    testing::step(optimizer, p, curvature * (p.detach() - optimum));
  }
  return optimizer.anchors().at(0).abs().max().item<double>();
}

/// A group in which all others do what this replica does, so that they need not be there.
class Alike final : public Communicator {
 public:
  explicit Alike(int64_t size) : size_(static_cast<int>(size)) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  at::Device device() const override { return at::kCPU; }
  Pending all_reduce_sum(Tensor flat) override { return flat.mul_(size_), Pending(); }
  Pending all_gather(Tensor rows, Tensor flat) override { return rows.copy_(flat.expand_as(rows)), Pending(); }
  Pending all_to_all(Tensor out, Tensor in) override { return out.copy_(in), Pending(); }
  Pending broadcast(Tensor, int) override { return {}; }

 private:
  int size_;
};

double distance(const Row& row, double outer_lr) {
  // Eager replicas whose optima differ stay apart.
  if (row.dynamics.eager) return distance(row, outer_lr, std::make_shared<Alike>(row.dynamics.replicas), 0);
  const auto distances = testing::run_ranks(
      2, [&](std::shared_ptr<Communicator> comm) { return distance(row, outer_lr, comm, comm->rank() == 0 ? 1 : -1); });
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
INSTANTIATE_TEST_SUITE_P(OfEager, Limit,
                         ::testing::Values(Row{"Replicas2", {0.9, true, 1, true, 2}, 0.770, 600},
                                           Row{"Replicas4", {0.9, true, 1, true, 4}, 0.416, 1000},
                                           Row{"Replicas8", {0.9, true, 1, true, 8}, 0.320, 1200},
                                           Row{"Replicas2TwoRoundsLate", {0.9, true, 2, true, 2}, 0.303, 2000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace outerloop
