#include "../../examples/schedule.hpp"

#include <gtest/gtest.h>

namespace outerloop::testing {
namespace {

Options scheduled(int64_t steps, double lr, int64_t warm_up, Decay decay) {
  Options options;
  options.steps = steps;
  options.lr = lr;
  options.warm_up = warm_up;
  options.decay = decay;
  return options;
}

TEST(LearningRate, WarmsUpForAQuarterAndFallsByACosine) {
  const Options options = scheduled(1200, 0.01, Options().warm_up, Options().decay);
  EXPECT_DOUBLE_EQ(lr_at(1, options), 0.01 / 300);
  EXPECT_DOUBLE_EQ(lr_at(150, options), 0.005);
  EXPECT_DOUBLE_EQ(lr_at(300, options), 0.01);
  EXPECT_DOUBLE_EQ(lr_at(750, options), 0.01 * (0.02 + 0.98 / 2));
  EXPECT_GT(lr_at(525, options), 0.01 * (0.02 + 0.98 * 0.75));  // above the line in its first half
  EXPECT_DOUBLE_EQ(lr_at(1200, options), 0.01 * 0.02);
}

TEST(LearningRate, WarmsUpForTheStepsAskedForAndFallsByALine) {
  const Options options = scheduled(1200, 0.008, 200, Decay::linear);
  EXPECT_DOUBLE_EQ(lr_at(100, options), 0.004);
  EXPECT_DOUBLE_EQ(lr_at(200, options), 0.008);
  EXPECT_DOUBLE_EQ(lr_at(450, options), 0.008 * (0.02 + 0.98 * 0.75));
  EXPECT_DOUBLE_EQ(lr_at(1200, options), 0.008 * 0.02);
}

TEST(LearningRate, MayBeginAtItsPeakAndMayOnlyRise) {
  const Options falls = scheduled(10, 1, 0, Decay::linear);
  EXPECT_DOUBLE_EQ(lr_at(1, falls), 0.02 + 0.98 * 0.9);
  const Options rises = scheduled(10, 1, 10, Decay::linear);
  EXPECT_DOUBLE_EQ(lr_at(10, rises), 1);
}

}  // namespace
}  // namespace outerloop::testing
