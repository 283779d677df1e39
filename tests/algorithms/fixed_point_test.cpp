#include <gtest/gtest.h>

#include <cmath>

#include "algorithms/quadratic.hpp"

// Closed forms of where local steps and rounds lead on quadratics 1/2 curvature (p - optimum)^2.

namespace outerloop {
namespace {

/// Two replicas, curvatures 1 and 4, optima -1 and 1, inner lr 0.1: the anchor after `rounds` rounds.
double settle(int64_t sync_every, double outer_lr, double outer_momentum, int rounds) {
  const auto anchors = testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const double curvature = comm->rank() == 0 ? 1 : 4, optimum = comm->rank() == 0 ? -1 : 1;
    Tensor p = testing::parameter(torch::zeros({1}, torch::kDouble));
    DiLoCoOptimizer optimizer(torch::optim::SGD({p}, 0.1), comm,
                              {.sync_every = sync_every, .outer_lr = outer_lr, .outer_momentum = outer_momentum});
    for (int64_t t = 0; t < rounds * sync_every; ++t) testing::step(optimizer, p, curvature * (p.detach() - optimum));
    return optimizer.anchors().at(0).item<double>();
  });
  EXPECT_EQ(anchors[0], anchors[1]);
  return anchors[0];
}

struct Case {
  int64_t sync_every;
  double limit;  ///< to six places
  int rounds;    ///< enough for the slowest of the outer settings below to settle to 1e-13
};

class FixedPoint : public ::testing::TestWithParam<Case> {};

TEST_P(FixedPoint, OfUnequalReplicasDependsOnSyncEveryAndNotOnTheOuterOptimizer) {
  const auto [sync_every, limit, rounds] = GetParam();
  const auto pull = [h = sync_every](double curvature) { return 1 - std::pow(1 - 0.1 * curvature, h); };
  const double closed_form = (pull(1) * -1 + pull(4) * 1) / (pull(1) + pull(4));
  EXPECT_NEAR(closed_form, limit, 5e-7);
  EXPECT_NEAR(settle(sync_every, 1.0, 0.0, rounds), closed_form, 1e-12);
  EXPECT_NEAR(settle(sync_every, 0.5, 0.5, rounds), closed_form, 1e-12);
  EXPECT_NEAR(settle(sync_every, 0.7, 0.9, rounds), closed_form, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(SyncEvery, FixedPoint,
                         ::testing::Values(Case{1, 0.600000, 240}, Case{2, 0.542169, 160}, Case{4, 0.433583, 110},
                                           Case{64, 0.000590, 60}),
                         [](const auto& info) { return std::to_string(info.param.sync_every); });

/// The variance of the anchor's elements, each its own copy of the same noisy problem: many elements need few rounds.
double anchor_variance(int replicas, const DiLoCoOptions& options, double lr, int burn_in, int rounds) {
  constexpr int64_t elements = 20'000;
  const auto variances = testing::run_ranks(replicas, [&](std::shared_ptr<Communicator> comm) {
    auto noise = at::detail::createCPUGenerator(1 + comm->rank());
    Tensor p = testing::parameter(torch::zeros({elements}));
    DiLoCoOptimizer optimizer(torch::optim::SGD({p}, lr), comm, options);
    double sum_of_squares = 0;
    for (int64_t t = 1; t <= (burn_in + rounds) * options.sync_every; ++t) {
      testing::step(optimizer, p, p.detach() + torch::randn({elements}, noise));
      if (t > burn_in * options.sync_every && t % options.sync_every == 0) {
        sum_of_squares += optimizer.anchors().at(0).square().mean().item<double>();
      }
    }
    return sum_of_squares / rounds;
  });
  return variances[0];
}

TEST(FixedPoint, NoiseOfEqualReplicasIsAveragedWhateverSyncEvery) {
  constexpr double lr = 0.05;
  constexpr int replicas = 2;
  for (const auto& [sync_every, burn_in] : {std::pair<int64_t, int>{1, 100}, {8, 14}, {32, 4}}) {
    for (const double outer_lr : {1.0, 0.5}) {
      const double r = 1 - lr, local_variance = lr * lr * (1 - std::pow(r, 2 * sync_every)) / (1 - r * r);
      const double keep = 1 - outer_lr * (1 - std::pow(r, sync_every));
      const double closed_form = outer_lr * outer_lr * local_variance / (replicas * (1 - keep * keep));
      if (outer_lr == 1.0) {
        EXPECT_NEAR(closed_form, 0.012821, 5e-7);
      }
      // The estimate's own deviation is sqrt(2 / 20000) = 1 % or less; a slower outer step needs longer to burn in.
      const int burn_in_rounds = outer_lr == 1.0 ? burn_in : 2 * burn_in + 4;
      const DiLoCoOptions options{.sync_every = sync_every, .outer_lr = outer_lr, .outer_momentum = 0.0};
      EXPECT_NEAR(anchor_variance(replicas, options, lr, burn_in_rounds, 4) / closed_form, 1, 0.04)
          << "sync_every " << sync_every << ", outer_lr " << outer_lr;
    }
  }
}

/// The same in the long run, of Nesterov with noise of unit variance: one round takes (anchor, velocity) to
///   map (anchor, velocity) + noise (-outer_lr (1 + momentum), 1),   noise of variance `of_mean_delta`
/// and covariance = map covariance map^T + what the noise adds.
double closed_form_variance(const DiLoCoOptions& options, double q, double of_mean_delta) {
  const double lr = options.outer_lr, m = options.outer_momentum;
  const Tensor map = torch::tensor({{1 - lr * (1 + m) * q, -lr * m * m}, {q, m}}, torch::kDouble);
  const Tensor enters = torch::tensor({{-lr * (1 + m)}, {1.0}}, torch::kDouble);
  const Tensor added = of_mean_delta * enters.matmul(enters.t());
  const Tensor covariance = at::linalg_solve(torch::eye(4, torch::kDouble) - at::kron(map, map), added.reshape({4}));
  return covariance[0].item<double>();
}

TEST(FixedPoint, NoiseOfEqualReplicasIsAveragedWithMomentumToo) {
  constexpr double inner_lr = 0.05;
  constexpr int replicas = 4;
  for (const auto& [outer_lr, momentum, variance] :
       {std::tuple{0.7, 0.5, 0.00829}, {0.7, 0.9, 0.01899}, {0.4, 0.9, 0.01262}}) {
    const DiLoCoOptions options{.sync_every = 8, .outer_lr = outer_lr, .outer_momentum = momentum};
    const double left = std::pow(1 - inner_lr, 8);  // of the way to the optimum, after a round's inner steps
    const double of_local = inner_lr * inner_lr * (1 - left * left) / (1 - (1 - inner_lr) * (1 - inner_lr));
    const double closed_form = closed_form_variance(options, 1 - left, of_local / replicas);
    EXPECT_NEAR(closed_form, variance, 5e-6);
    // The slowest of the three keeps 0.78 of a variance per round: 40 rounds leave less than 1e-4.
    EXPECT_NEAR(anchor_variance(replicas, options, inner_lr, 40, 4) / closed_form, 1, 0.04)
        << "outer_lr " << outer_lr << ", momentum " << momentum;
  }
}

}  // namespace
}  // namespace outerloop
