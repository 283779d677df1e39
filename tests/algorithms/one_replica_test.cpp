#include <gtest/gtest.h>

#include "algorithms/quadratic.hpp"

// A single replica that averages with nobody trains as the bare inner optimizer does. A round takes the parameters to
// anchor - (anchor - params). That is params where the difference is exact. Otherwise it is within one step of float32
// at the larger of anchor and params: the difference is at most twice the larger, so it rounds by at most one such
// step, and the sum then rounds between numbers that are representable.

namespace outerloop {
namespace {

using testing::same_bits;

/// The wrapped optimizer and a bare one, which starts each step from the wrapped one's parameters.
void expect_no_op(const Tensor& start, const std::vector<Tensor>& gradients, double bound) {
  constexpr int64_t sync_every = 3;
  Tensor wrapped = testing::parameter(start), bare = testing::parameter(start);
  const auto options = torch::optim::SGDOptions(0.25).momentum(0.5);
  LocalSGDOptimizer ours(torch::optim::SGD({wrapped}, options), connect_alone(), {.sync_every = sync_every});
  torch::optim::SGD theirs({bare}, options);
  for (size_t t = 0; t < gradients.size(); ++t) {
    bare.detach().copy_(wrapped.detach());
    const Tensor anchor = ours.anchors().at(0);
    testing::step(ours, wrapped, gradients[t]);
    testing::step(theirs, bare, gradients[t]);
    if ((t + 1) % sync_every != 0 || bound == 0) {
      EXPECT_TRUE(same_bits(wrapped, bare)) << "step " << t + 1;
    } else {
      EXPECT_LE(testing::ulps(wrapped, bare, anchor), bound) << "step " << t + 1;
    }
  }
  EXPECT_EQ(ours.rounds(), static_cast<int64_t>(gradients.size()) / sync_every);
}

TEST(OneReplica, IsTheInnerOptimizerBitForBitOnDyadicData) {
  std::vector<Tensor> gradients;
  for (int t = 0; t < 9; ++t) gradients.push_back(testing::eighths({50}, 10 + t));
  expect_no_op(testing::eighths({50}, 1), gradients, 0);
}

TEST(OneReplica, IsTheInnerOptimizerWithinOneUlpOfAnchorOrParameter) {
  std::vector<Tensor> gradients;
  for (int t = 0; t < 60; ++t) gradients.push_back(testing::normal({500}, 10 + t));
  expect_no_op(testing::normal({500}, 1), gradients, 1);
}

}  // namespace
}  // namespace outerloop
