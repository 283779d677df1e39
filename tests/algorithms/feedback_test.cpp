#include <gtest/gtest.h>

#include <outerloop/outerloop.hpp>

#include <cmath>
#include <random>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

// Local SGD on a quadratic of 20 dimensions and condition 100, whose optimum differs a little between four replicas,
// with wires that keep 4 of the 20 coordinates.

namespace outerloop::testing::feedback {
namespace {

constexpr int64_t dimensions = 20, replicas = 4, rounds = 40, inner_steps = 50;
constexpr double lr = 0.03, noise = 0.05, spread = 0.1;

double curvature(int64_t i) { return std::pow(10.0, -2 + 2.0 * static_cast<double>(i) / (dimensions - 1)); }

struct Problem {
  explicit Problem(uint64_t seed) {
    const Tensor apart = spread * normal({replicas, dimensions}, 10 * seed + 1, at::kDouble);
    optimum = normal({dimensions}, 10 * seed, at::kDouble);
    optima = optimum + apart - apart.mean(0);
  }
  double loss(const Tensor& x) const {
    double sum = 0;
    for (int64_t i = 0; i < dimensions; ++i) {
      sum += 0.5 * curvature(i) * std::pow(x[i].item<double>() - optimum[i].item<double>(), 2);
    }
    return sum;
  }
  Tensor optimum, optima;
};

/// The window's inner steps by hand, given to the optimizer as one gradient.
Tensor window(const Tensor& from, const Tensor& optimum, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, noise);
  const Tensor moved = torch::zeros({dimensions});
  for (int64_t i = 0; i < dimensions; ++i) {
    const double start = from[i].item<float>(), goal = optimum[i].item<double>();
    double x = start;
    for (int64_t step = 0; step < inner_steps; ++step) x -= lr * (curvature(i) * (x - goal) + normal(random));
    moved[i] = start - x;
  }
  return moved;
}

double mean_loss(const SyncOptions& sync) {
  constexpr uint64_t seeds = 4;
  double sum = 0;
  const auto group = gloo_group(replicas, std::chrono::seconds(60), 0);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Problem problem(seed);
    sum += run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
      std::mt19937_64 random(100 * seed + comm->rank());
      const Tensor x = parameter(torch::zeros({dimensions}));
      LocalSGDOptimizer optimizer(torch::optim::SGD({x}, 1.0), comm, {.sync_every = 1, .sync = sync});
      for (int64_t round = 0; round < rounds; ++round) {
        x.mutable_grad() = window(x.detach(), problem.optima[comm->rank()], random);
        optimizer.step();
      }
      return problem.loss(x.detach());
    })[0];
  }
  return sum / seeds;
}

TEST(Feedback, MakesUpForWhatASparseWireLeavesOut) {
  const auto sparse = codecs::top_k(0.2, 8);  // of 20: 4
  const double dense = mean_loss({}), with = mean_loss({.codec = sparse, .error_feedback = ErrorFeedback{}}),
               without = mean_loss({.codec = sparse});
  EXPECT_LT(with, 1.2 * dense) << "dense " << dense;
  EXPECT_GT(without, 5 * dense) << "dense " << dense;
}

}  // namespace
}  // namespace outerloop::testing::feedback
