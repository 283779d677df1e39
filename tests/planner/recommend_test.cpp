#include <gtest/gtest.h>

#include <limits>
#include <outerloop/planner.hpp>
#include <vector>

#include "planner/link.hpp"
#include "planner/refused.hpp"

namespace outerloop::planner {
namespace {

/// One message of all parameters takes `steps` inner steps over the link of one bit per second.
Job message_of(double steps, int layers) { return {.parameters = 32, .step_seconds = 1024 / steps, .layers = layers}; }

std::vector<int64_t> found(double steps, int layers, double target, Limits limits, Link link = bit_per_second) {
  const auto best = recommend(message_of(steps, layers), link, target, 32, limits);
  if (!best) return {};
  EXPECT_GE(best->utilisation, target - 1e-9);
  EXPECT_EQ(best->utilisation, utilisation(message_of(steps, layers), link, best->schedule));
  return {best->schedule.sync_every, best->schedule.fragments, best->schedule.delay};
}

TEST(Recommend, WithoutOverlapOneFragmentAndStepsEnough) {
  EXPECT_EQ(found(10, 24, 0.9, {.delay = 0}), (std::vector<int64_t>{90, 1, 0}));  // 90 / (90 + 10)
  EXPECT_EQ(found(10, 24, 0.5, {.delay = 0}), (std::vector<int64_t>{10, 1, 0}));
}

/// 14.4 s / (14.4 s + 1.6 s) is the target itself: rounding does not choose fragments that do not help.
TEST(Recommend, ReachesATargetThatIsMetExactly) {
  const Job job{.parameters = 1'000'000'000, .step_seconds = 0.1, .layers = 24};
  const auto best = recommend(job, {.bits_per_second = 1e10}, 0.9, 16, {.delay = 0});
  ASSERT_TRUE(best);
  EXPECT_EQ(best->schedule.sync_every, 144);
  EXPECT_EQ(best->schedule.fragments, 1);
}

/// Fragments of 10 / n steps, one of which is hidden: with ten all is, and the link is never idle.
TEST(Recommend, WithOverlapFragmentsThatHide) {
  EXPECT_EQ(found(10, 24, 0.99, {}), (std::vector<int64_t>{10, 10, 1}));
  EXPECT_EQ(found(10, 4, 0.75, {}), (std::vector<int64_t>{20, 4, 1}));  // 5 / (5 + 10 / 4 - 1) = 0.77
}

TEST(Recommend, DataParallelismsRhythmWhereTheLinkAllowsIt) {
  EXPECT_EQ(found(0.01, 24, 0.9, {}), (std::vector<int64_t>{1, 1, 0}));
}

TEST(Recommend, NothingWithinLimitsThatAreTooNarrow) {
  EXPECT_EQ(found(10, 24, 0.9, {.sync_every = 89, .delay = 0}), (std::vector<int64_t>{}));
  EXPECT_EQ(found(10, 24, 0.9, {.sync_every = 90, .delay = 0}), (std::vector<int64_t>{90, 1, 0}));
}

/// Against trying everything.
TEST(Recommend, IsTheFirstThatReachesTheTarget) {
  const Limits limits{.sync_every = 60, .fragments = 6, .delay = 3};
  const auto first = [&](const Job& job, const Link& link, double target) -> std::vector<int64_t> {
    for (int64_t sync_every = 1; sync_every <= limits.sync_every; ++sync_every) {
      for (int64_t delay = 0; delay <= limits.delay && delay < sync_every; ++delay) {
        for (int fragments = 1; fragments <= limits.fragments && fragments <= sync_every; ++fragments) {
          if (sync_every % fragments != 0) continue;
          if (utilisation(job, link, {sync_every, fragments, delay}) >= target - 1e-9)
            return {sync_every, fragments, delay};
        }
      }
    }
    return {};
  };
  int some = 0, none = 0;
  for (const double latency : {0.0, 20.0}) {
    const Link link{.bits_per_second = 1, .latency_seconds = latency};
    for (const double steps : {0.3, 1.0, 3.7, 9.0, 25.0}) {
      for (const double target : {0.3, 0.8, 0.95, 0.99}) {
        const auto expected = first(message_of(steps, 6), link, target);
        EXPECT_EQ(found(steps, 6, target, limits, link), expected) << latency << " " << steps << " " << target;
        ++(expected.empty() ? none : some);
      }
    }
  }
  EXPECT_GT(some, 20);
  EXPECT_GT(none, 3);
}

TEST(Recommend, NeedsNothingOfOneReplica) {
  const auto best = recommend({.parameters = 1, .step_seconds = 1, .replicas = 1}, bit_per_second, 0.99);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->schedule.sync_every, 1);
  EXPECT_EQ(best->utilisation, 1);
}

TEST(Recommend, TriesNoDelayThatRoundsCannotUse) {
  const Limits limits{.sync_every = 40, .fragments = 1, .delay = INT64_MAX};
  const auto best = recommend({.parameters = 1, .step_seconds = 1}, bit_per_second, 0.9, 32, limits);
  ASSERT_TRUE(best);
  EXPECT_LT(best->schedule.delay, best->schedule.sync_every);
}

TEST(Recommend, RefusesWhatCannotBe) {
  const Job job{.parameters = 1, .step_seconds = 1};
  const auto refusal = [&](double target, double bits, Limits limits) {
    return refused([&] { recommend(job, bit_per_second, target, bits, limits); });
  };
  EXPECT_EQ(refusal(1, 32, {}), "target must be in (0, 1), got 1");
  EXPECT_EQ(refusal(0.9, -1, {}), "bits must be positive and finite, got -1");
  EXPECT_EQ(refusal(0.9, 32, {.sync_every = 0}), "limits.sync_every must be in [1, 1000000000000000], got 0");
  EXPECT_EQ(refusal(0.9, 32, {.sync_every = INT64_MAX}),
            "limits.sync_every must be in [1, 1000000000000000], got 9223372036854775807");
  EXPECT_EQ(refusal(0.9, 32, {.fragments = 0}), "limits.fragments must be >= 1, got 0");
  EXPECT_EQ(refusal(0.9, 32, {.delay = -1}), "limits.delay must be >= 0, got -1");
  EXPECT_EQ(refused([&] { recommend({}, bit_per_second, 0.9); }), "parameters must be > 0, got 0");
  EXPECT_EQ(refused([&] { recommend(job, {}, 0.9); }), "bits_per_second must be > 0, got 0");
}

}  // namespace
}  // namespace outerloop::planner
