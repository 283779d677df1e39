#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// What becomes of a difference between replicas. Of anchors it would stay for ever, as all of them move by the same
// mean delta: that is why optimizers compare and repair them (tests/round/agreement_test.cpp), which a recipe of one's
// own does not. Of parameters it decays.

namespace outerloop {
namespace {

constexpr double offset = 0.125, inner_lr = 0.1;
constexpr int64_t window = 2;  ///< inner steps between rounds

Tensor target() { return torch::full({3}, 0.75, torch::kDouble); }

/// By rank, anchors or parameters after each round.
std::vector<double> differences(const std::vector<testing::Path>& paths) {
  std::vector<double> of;
  for (size_t t = 0; t < paths[0].size(); ++t) of.push_back((paths[1][t] - paths[0][t])[0].item<double>());
  return of;
}

TEST(Offset, OfAnchorsStaysWhereNobodyRepairsIt) {
  const auto anchors = testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Tensor p = testing::parameter(torch::full({3}, comm->rank() * offset, torch::kDouble));
    FlatParams params({p});
    torch::optim::SGD inner({p}, inner_lr);
    Tensor anchor = params.gather(), velocity = torch::zeros_like(anchor);
    testing::Path path;
    for (int round = 0; round < 20; ++round) {
      for (int64_t t = 0; t < window; ++t) testing::step(inner, p, p.detach() - target());
      Tensor delta = pseudogradient(anchor, params);
      mean_across(*comm, delta).wait();
      nesterov_step(anchor, velocity, delta, 0.7, 0.9);
      params.scatter(anchor);
      path.push_back(anchor.clone());
    }
    return path;
  });
  for (const double difference : differences(anchors)) EXPECT_NEAR(difference, offset, 1e-14);
}

/// The parameters after each of ten rounds; those of rank 1 are moved by the offset before the first.
std::vector<testing::Path> moved_apart(double keep_local) {
  return testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Tensor p = testing::parameter(torch::zeros({3}, torch::kDouble));
    DiLoCoOptimizer optimizer(torch::optim::SGD({p}, inner_lr), comm,
                              {.sync_every = window, .streaming = {.keep_local = keep_local}});
    p.detach().add_(comm->rank() * offset);
    testing::Path path;
    for (int64_t t = 1; t <= 10 * window; ++t) {
      testing::step(optimizer, p, p.detach() - target());
      if (t % window == 0) path.push_back(p.detach().clone());
    }
    return path;
  });
}

TEST(Offset, OfParametersDecaysByWhatInnerStepsLeaveAndRoundsKeep) {
  for (const double keep_local : {0.5, 1.0}) {
    const double factor = keep_local * std::pow(1 - inner_lr, window);
    double expected = offset;
    for (const double difference : differences(moved_apart(keep_local))) {
      expected *= factor;
      EXPECT_NEAR(difference, expected, 1e-14) << "keep_local " << keep_local;
    }
  }
}

TEST(Offset, OfParametersIsGoneAfterARoundThatKeepsNothing) {
  const auto paths = moved_apart(0);
  EXPECT_TRUE(testing::same_bits(paths[0], paths[1]));
}

}  // namespace
}  // namespace outerloop
