#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// The outer step is torch::optim::SGD on the anchor, with the mean delta as its gradient.

namespace outerloop {
namespace {

using testing::eighths;
using testing::normal;
using testing::same_bits;

constexpr int rounds = 24;

/// moves[t][r]: how far replica r walks in round t. Returns the anchor after every round.
std::vector<Tensor> ours(const Tensor& start, const std::vector<std::vector<Tensor>>& moves, DiLoCoOptions options) {
  options.sync_every = 1;
  const auto paths = testing::run_ranks(moves[0].size(), [&](std::shared_ptr<Communicator> comm) {
    Tensor p = testing::parameter(start);
    DiLoCoOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, options);
    std::vector<Tensor> anchors;
    for (const auto& move : moves) {
      testing::step(optimizer, p, move[comm->rank()]);
      anchors.push_back(optimizer.anchors().at(0));
      EXPECT_TRUE(same_bits(p, anchors.back()));
    }
    return anchors;
  });
  for (const auto& path : paths) EXPECT_TRUE(same_bits(path, paths[0]));
  return paths[0];
}

/// What torch::optim::SGD makes of `start` and the mean deltas of the rounds that led to `anchors`.
std::vector<Tensor> torch_sgd(const Tensor& start, const std::vector<std::vector<Tensor>>& moves,
                              const std::vector<Tensor>& anchors, const DiLoCoOptions& options) {
  Tensor p = testing::parameter(start);
  const auto outer =
      torch::optim::SGDOptions(options.outer_lr).momentum(options.outer_momentum).nesterov(options.nesterov);
  torch::optim::SGD sgd({p}, outer);
  std::vector<Tensor> path;
  for (size_t t = 0; t < moves.size(); ++t) {
    const Tensor& before = t == 0 ? start : anchors[t - 1];
    Tensor sum = torch::zeros_like(start, torch::kDouble);
    for (const Tensor& move : moves[t]) sum += before - (before - move);
    testing::step(sgd, p, (sum / static_cast<double>(moves[t].size())).to(start.scalar_type()));
    path.push_back(p.detach().clone());
  }
  return path;
}

template <class Draw>
std::vector<std::vector<Tensor>> draw_moves(int ranks, Draw draw) {
  std::vector<std::vector<Tensor>> moves(rounds);
  for (int t = 0; t < rounds; ++t) {
    for (int r = 0; r < ranks; ++r) moves[t].push_back(draw(1000 + 10 * t + r));
  }
  return moves;
}

class OuterMomentum : public ::testing::TestWithParam<int> {};  // the number of replicas

TEST_P(OuterMomentum, OnDyadicDataIsTorchSgdBitForBit) {
  // Velocity and anchor gain a bit per round, and the mean over three none that would be exact: 24 rounds fit float64.
  const int ranks = GetParam();
  const auto moves = draw_moves(ranks, [&](uint64_t seed) { return eighths({33}, seed, at::kDouble) * ranks; });
  const Tensor start = eighths({33}, 1, at::kDouble);
  for (const bool nesterov : {true, false}) {
    const DiLoCoOptions halves{.outer_lr = 0.5, .outer_momentum = 0.5, .nesterov = nesterov};
    const auto anchors = ours(start, moves, halves);
    const auto expected = torch_sgd(start, moves, anchors, halves);
    for (int t = 0; t < rounds; ++t) EXPECT_TRUE(same_bits(anchors[t], expected[t])) << "round " << t + 1;
  }
}

TEST_P(OuterMomentum, OnAnyDataIsTorchSgdWithinTwoUlp) {
  // Anchors stay between 8 and 16, so that an ulp is one size for all of them and all rounds.
  const auto moves = draw_moves(GetParam(), [](uint64_t seed) { return normal({300}, seed) / 64; });
  const Tensor start = 12 + normal({300}, 1) / 4;
  for (const bool nesterov : {true, false}) {
    const DiLoCoOptions paper{.outer_lr = 0.7, .outer_momentum = 0.9, .nesterov = nesterov};
    const auto anchors = ours(start, moves, paper);
    const auto expected = torch_sgd(start, moves, anchors, paper);
    for (int t = 0; t < rounds; ++t) EXPECT_LE(testing::ulps(anchors[t], expected[t]), 2) << "round " << t + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, OuterMomentum, ::testing::Range(1, 5),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(OuterMomentum, FirstRoundMovesLrTimesOnePlusMomentum) {
  const Tensor start = torch::zeros({5}, torch::kDouble), move = torch::ones({5}, torch::kDouble);
  const auto paper = ours(start, {{move, move}}, {.outer_lr = 0.7, .outer_momentum = 0.9});
  EXPECT_LE(testing::ulps(paper[0], -1.33 * move), 1);
  const auto halves = ours(start, {{move, move}}, {.outer_lr = 0.5, .outer_momentum = 0.5});
  EXPECT_TRUE(torch::equal(halves[0], -0.75 * move));
}

TEST(OuterMomentum, SteadyStateMovesLrOverOneMinusMomentum) {
  const Tensor start = torch::zeros({5}, torch::kDouble), move = torch::ones({5}, torch::kDouble);
  // The velocity is (1 - 0.9^t) / (1 - 0.9) after t rounds: 0.9^350 is below float64's resolution.
  const std::vector<std::vector<Tensor>> moves(350, {move});
  const auto anchors = ours(start, moves, {.outer_lr = 0.7, .outer_momentum = 0.9});
  EXPECT_TRUE(torch::allclose(anchors[348] - anchors[349], 7.0 * move, 0, 1e-11));
}

}  // namespace
}  // namespace outerloop
