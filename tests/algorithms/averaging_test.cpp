#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// What a round is without outer momentum, against formulas written here on plain tensors.

namespace outerloop {
namespace {

using testing::exact_problem;
using testing::Path;
using testing::Quadratic;
using testing::rounding_problem;
using testing::same_bits;
using testing::ulps;

/// `outer(anchor, locals)` returns the next anchor: a reference of the algorithms whose rounds replace the parameters.
template <class Outer>
std::vector<Path> reference(const Quadratic& problem, int steps, int sync_every, Outer outer) {
  Tensor anchor = problem.start;
  std::vector<Tensor> locals(problem.ranks(), problem.start);
  std::vector<Path> paths(problem.ranks());
  for (int t = 1; t <= steps; ++t) {
    for (int r = 0; r < problem.ranks(); ++r) locals[r] = locals[r] - problem.lr * (locals[r] - problem.targets[r]);
    if (t % sync_every == 0) {
      anchor = outer(anchor, locals);
      for (auto& local : locals) local = anchor;
    }
    for (int r = 0; r < problem.ranks(); ++r) paths[r].push_back(locals[r]);
  }
  return paths;
}

Tensor mean(const std::vector<Tensor>& tensors) { return torch::stack(tensors).mean(0); }

void expect_equal(const std::vector<Path>& ours, const std::vector<Path>& theirs) {
  for (size_t r = 0; r < ours.size(); ++r) {
    for (size_t t = 0; t < ours[r].size(); ++t) {
      EXPECT_TRUE(torch::equal(ours[r][t], theirs[r][t])) << "rank " << r << ", step " << t + 1;
    }
  }
}

void expect_near(const std::vector<Path>& ours, const std::vector<Path>& theirs, double bound, const Quadratic& of) {
  for (size_t r = 0; r < ours.size(); ++r) {
    for (size_t t = 0; t < ours[r].size(); ++t) {
      EXPECT_LE(ulps(ours[r][t], theirs[r][t], of.scale()), bound) << "rank " << r << ", step " << t + 1;
    }
  }
}

DiLoCoOptions plain(int64_t sync_every, double outer_lr) {
  return {.sync_every = sync_every, .outer_lr = outer_lr, .outer_momentum = 0.0};
}

std::vector<Path> averaged_gradient_sgd(const Quadratic& problem, int steps) {
  Tensor p = testing::parameter(problem.start);
  torch::optim::SGD sgd({p}, problem.lr);
  Path path;
  for (int t = 0; t < steps; ++t) {
    testing::step(sgd, p, p.detach() - mean(problem.targets));
    path.push_back(p.detach().clone());
  }
  return std::vector<Path>(problem.ranks(), path);
}

TEST(Averaging, EveryStepIsGradientAveragedSgdExactlyOnDyadicData) {
  for (const int ranks : {1, 2, 4}) {
    const Quadratic problem = exact_problem(ranks, at::kDouble);
    expect_equal(train_diloco(problem, 20, plain(1, 1.0)), averaged_gradient_sgd(problem, 20));
  }
}

TEST(Averaging, EveryStepIsGradientAveragedSgdWithinAFewUlp) {
  for (const int ranks : {2, 3}) {
    const Quadratic problem = rounding_problem(ranks);
    expect_near(train_diloco(problem, 20, plain(1, 1.0)), averaged_gradient_sgd(problem, 20), 4, problem);
  }
}

TEST(Averaging, DiLoCoWithUnitOuterLrAndNoMomentumIsLocalSgdBitForBit) {
  for (const int sync_every : {1, 4}) {
    const Quadratic problem = rounding_problem(3);
    const auto diloco = train_diloco(problem, 20, plain(sync_every, 1.0));
    const auto local_sgd = train_local_sgd(problem, 20, {.sync_every = sync_every});
    for (int r = 0; r < problem.ranks(); ++r) EXPECT_TRUE(same_bits(diloco[r], local_sgd[r])) << "rank " << r;
  }
}

TEST(Averaging, LocalSgdReplacesParametersByTheirMean) {
  const auto federated = [](const Tensor&, const std::vector<Tensor>& locals) { return mean(locals); };
  const Quadratic exact = exact_problem(4), rounding = rounding_problem(3);
  expect_equal(train_local_sgd(exact, 12, {.sync_every = 4}), reference(exact, 12, 4, federated));
  expect_near(train_local_sgd(rounding, 20, {.sync_every = 4}), reference(rounding, 20, 4, federated), 4, rounding);
}

TEST(Averaging, OneReplicaWithInterpolatedAnchorIsLookahead) {
  const auto lookahead = [](double alpha) {
    return [alpha](const Tensor& slow, const std::vector<Tensor>& fast) { return slow + alpha * (fast[0] - slow); };
  };
  const Quadratic exact = exact_problem(1), rounding = rounding_problem(1, at::kDouble);
  expect_equal(train_diloco(exact, 12, plain(3, 0.5)), reference(exact, 12, 3, lookahead(0.5)));
  expect_near(train_diloco(rounding, 30, plain(3, 0.7)), reference(rounding, 30, 3, lookahead(0.7)), 4, rounding);
}

/// SlowMo (Wang et al., 2019, arXiv:1910.00643) at a constant inner lr.
auto slow_mo(double alpha, double beta, double lr, Tensor& buffer) {
  return [=, &buffer](const Tensor& anchor, const std::vector<Tensor>& locals) {
    buffer = beta * buffer + (anchor - mean(locals)) / lr;
    return anchor - alpha * lr * buffer;
  };
}

TEST(Averaging, SlowMoWithoutMomentumIsLocalSgd) {
  const Quadratic exact = exact_problem(2), rounding = rounding_problem(3, at::kDouble);
  Tensor buffer = torch::zeros_like(exact.start);
  expect_equal(train_local_sgd(exact, 12, {.sync_every = 3}), reference(exact, 12, 3, slow_mo(1, 0, exact.lr, buffer)));
  buffer = torch::zeros_like(rounding.start);
  expect_near(train_local_sgd(rounding, 21, {.sync_every = 3}),
              reference(rounding, 21, 3, slow_mo(1, 0, rounding.lr, buffer)), 8, rounding);
}

TEST(Averaging, SlowMoIsDiLoCoWithHeavyBall) {
  const Quadratic exact = exact_problem(2), rounding = rounding_problem(3, at::kDouble);
  Tensor buffer = torch::zeros_like(exact.start);
  const DiLoCoOptions halves{.sync_every = 3, .outer_lr = 0.5, .outer_momentum = 0.5, .nesterov = false};
  expect_equal(train_diloco(exact, 12, halves), reference(exact, 12, 3, slow_mo(0.5, 0.5, exact.lr, buffer)));
  buffer = torch::zeros_like(rounding.start);
  const DiLoCoOptions paper{.sync_every = 3, .outer_lr = 1.0, .outer_momentum = 0.6, .nesterov = false};
  expect_near(train_diloco(rounding, 21, paper), reference(rounding, 21, 3, slow_mo(1, 0.6, rounding.lr, buffer)), 16,
              rounding);
}

}  // namespace
}  // namespace outerloop
