#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <outerloop/planner.hpp>
#include <string>
#include <vector>

#include "planner/link.hpp"
#include "planner/refused.hpp"

namespace outerloop::planner {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr auto during_backward = Sending::during_backward;

/// Of two replicas whose models take `seconds` to travel.
double share(double seconds, double step_seconds, Schedule schedule, int layers = 1) {
  schedule.bits = seconds / 64;
  return utilisation({.parameters = 64, .step_seconds = step_seconds, .layers = layers}, bit_per_second, schedule);
}

TEST(Utilisation, WithoutOverlapARoundTakesItsStepsAndItsMessage) {
  EXPECT_DOUBLE_EQ(share(7, 3, {.sync_every = 1}), 3.0 / 10);
  EXPECT_DOUBLE_EQ(share(7, 3, {.sync_every = 5}), 15.0 / 22);
}

TEST(Utilisation, FragmentsAfterTheStepWaitAsLongAsTheWholeDoes) {
  EXPECT_NEAR(share(7, 3, {.sync_every = 8, .fragments = 4}), 24.0 / 31, 1e-12);
  EXPECT_NEAR(share(7, 3, {.sync_every = 7, .fragments = 3}), 21.0 / 28, 1e-12);
}

TEST(Utilisation, ADelayHidesWhatItsStepsTake) {
  EXPECT_DOUBLE_EQ(share(7, 6, {.sync_every = 2, .delay = 1}), 12.0 / 13);
  EXPECT_DOUBLE_EQ(share(6, 6, {.sync_every = 2, .delay = 1}), 1);
  EXPECT_DOUBLE_EQ(share(20, 6, {.sync_every = 10, .delay = 3}), 60.0 / 62);
}

TEST(Utilisation, ADelayOfWholeRoundsHidesAllThatTheChannelKeepsUpWith) {
  EXPECT_DOUBLE_EQ(share(11, 6, {.sync_every = 2, .delay = 2}), 1);
  EXPECT_DOUBLE_EQ(share(11, 6, {.sync_every = 2, .delay = 301}), 1);
  EXPECT_DOUBLE_EQ(share(20, 6, {.sync_every = 2, .delay = 4}), 12.0 / 20);
}

/// Steps of 6 s, applied after steps 2 and 3, sent a step before, 7 s each. From step 4 on, over and over:
///   computed 20 to 26, then sent 26 to 33; computed 26 to 32, then queued until 40, waited until 33;
///   computed 33 to 39, waited until 40
TEST(Utilisation, MessagesQueueForTheChannel) {
  EXPECT_DOUBLE_EQ(share(14, 6, {.sync_every = 3, .fragments = 2, .delay = 1}), 18.0 / 20);
}

/// Forward 1 s a layer, backward 2 s. Layer 1 is sent at 4, layer 0 at 6 or when that has arrived, and needed at once.
TEST(Utilisation, DataParallelismHidesAllButTheLowestLayerInTheBackward) {
  const Schedule every_step = data_parallel();
  EXPECT_DOUBLE_EQ(share(2 * 1, 6, every_step, 2), 6.0 / 7);
  EXPECT_DOUBLE_EQ(share(2 * 2, 6, every_step, 2), 6.0 / 8);
  EXPECT_DOUBLE_EQ(share(2 * 3, 6, every_step, 2), 6.0 / 10);
}

/// As above, but layer 0 belongs to the other fragment: layer 1 alone has 2 s of backward and 1 s of forward to hide
/// in, layer 0 nothing.
TEST(Utilisation, DuringBackwardALayerTravelsUntilItsNextForward) {
  const Schedule apart{.sync_every = 4, .fragments = 2, .sending = during_backward};
  EXPECT_DOUBLE_EQ(share(2 * 3, 6, apart, 2), 24.0 / 27);
  EXPECT_DOUBLE_EQ(share(2 * 5, 6, apart, 2), 24.0 / 31);
}

TEST(Utilisation, OneLayerSentDuringBackwardIsSentAfterTheStep) {
  for (const double seconds : {1.0, 5.0, 40.0}) {
    for (const int64_t delay : {0, 1, 3}) {
      EXPECT_DOUBLE_EQ(share(seconds, 6, {.sync_every = 4, .delay = delay}),
                       share(seconds, 6, {.sync_every = 4, .delay = delay, .sending = during_backward}));
    }
  }
}

/// g steps apart, each m steps long: a fragment takes max(g, m, g + m - delay) steps of time.
TEST(Utilisation, OfEvenFragmentsIsAClosedForm) {
  for (const int fragments : {1, 2, 5}) {
    for (const double g : {1, 2, 7}) {
      for (const int64_t delay : {0, 1, 2, 4}) {
        for (const double m : {0.25, 0.999, 1.0, 1.001, 1.5, 2.0, 3.0, 6.5, 8.0, 30.0}) {
          const Schedule schedule{
              .sync_every = static_cast<int64_t>(g) * fragments, .fragments = fragments, .delay = delay};
          if (delay >= schedule.sync_every) continue;
          const double expected = g / std::max({g, m, g + m - static_cast<double>(delay)});
          EXPECT_NEAR(share(m * fragments, 1, schedule), expected, 1e-12)
              << fragments << " fragments, " << g << " steps apart, delay " << delay << ", " << m << " steps each";
        }
      }
    }
  }
}

TEST(Utilisation, LatencyCountsTwiceAfterTheStepAndOnceForEachLayerDuringBackward) {
  const Job job{.parameters = 1, .step_seconds = 1, .layers = 2};
  const Link link{.bits_per_second = infinite, .latency_seconds = 0.25};
  EXPECT_DOUBLE_EQ(utilisation(job, link, {.sync_every = 1}), 1 / 1.5);
  EXPECT_DOUBLE_EQ(utilisation(job, link, {.sync_every = 2, .fragments = 2}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(utilisation(job, link, data_parallel()), 1 / 1.25);  // the upper layer's has arrived
}

TEST(Utilisation, AReplicaSendsTheSharesOfARing) {
  const auto waited = [](int replicas) {
    const double share =
        utilisation({.parameters = 1, .step_seconds = 1, .replicas = replicas}, bit_per_second, {.sync_every = 1});
    return 1 / share - 1;
  };
  EXPECT_NEAR(waited(2), 32, 1e-9);
  EXPECT_NEAR(waited(4), 48, 1e-9);
  EXPECT_EQ(waited(1), 0);
}

const Job billion{.parameters = 1'000'000'000, .step_seconds = 0.1, .layers = 24};
const std::vector<Schedule> schedules{
    data_parallel(),
    {.sync_every = 10},
    {.sync_every = 100, .fragments = 8},
    {.sync_every = 100, .fragments = 8, .delay = 1},
    {.sync_every = 100, .fragments = 8, .delay = 40},
    {.sync_every = 100, .fragments = 8, .sending = during_backward},
    {.sync_every = 100, .fragments = 24, .delay = 5, .sending = during_backward},
    {.sync_every = 7, .fragments = 5, .delay = 6},
};

TEST(Utilisation, RisesWithBandwidthFromZeroToOne) {
  for (const Schedule& schedule : schedules) {
    double before = 0;
    for (double bandwidth = 1e5; bandwidth < 1e15; bandwidth *= 1.1) {
      const double now = utilisation(billion, {.bits_per_second = bandwidth}, schedule);
      ASSERT_GE(now, before - 1e-12) << bandwidth;
      before = now;
    }
    EXPECT_NEAR(before, 1, 1e-3);
    EXPECT_LT(utilisation(billion, {.bits_per_second = 1e5}, schedule), 0.01);
    EXPECT_EQ(utilisation(billion, {.bits_per_second = infinite}, schedule), 1);
  }
}

TEST(Utilisation, OverlapIsNeverWorseAndHelpsWhereThereIsSomethingToHide) {
  for (const double bandwidth : {1e8, 1e9, 1e10}) {
    for (const Sending sending : {Sending::after_step, during_backward}) {
      Schedule schedule{.sync_every = 100, .fragments = 8, .sending = sending};
      const double apart = utilisation(billion, {.bits_per_second = bandwidth}, schedule);
      schedule.delay = 1;
      EXPECT_GT(utilisation(billion, {.bits_per_second = bandwidth}, schedule), apart);
    }
  }
}

TEST(BandwidthNeeded, IsWhereTheTargetIsReached) {
  for (const Schedule& schedule : schedules) {
    for (const double target : {0.05, 0.5, 0.9, 0.99}) {
      const double needed = bandwidth_needed(billion, 1e-5, schedule, target);
      EXPECT_NEAR(utilisation(billion, {needed, 1e-5}, schedule), target, 2e-9);
      EXPECT_LT(utilisation(billion, {needed * (1 - 1e-6), 1e-5}, schedule), target);
    }
  }
}

TEST(BandwidthNeeded, IsInfiniteWhereLatencyAloneIsTooMuch) {
  EXPECT_EQ(bandwidth_needed(billion, 1, {.sync_every = 10}, 0.5), infinite);  // 1 s of steps, 2 s of latency
  EXPECT_LT(bandwidth_needed(billion, 0.4, {.sync_every = 10}, 0.5), infinite);
}

TEST(BandwidthNeeded, OfOneReplicaIsNext) {
  EXPECT_EQ(bandwidth_needed({.parameters = 1, .step_seconds = 1, .replicas = 1}, 0, {}, 0.99), 1);
}

TEST(Utilisation, RefusesWhatCannotBe) {
  const auto refusal = [](Job job, Link link, Schedule schedule) {
    return refused([&] { utilisation(job, link, schedule); });
  };
  const Job job{.parameters = 1, .step_seconds = 1, .layers = 2};
  const Link link{.bits_per_second = 1};
  EXPECT_EQ(refusal(job, link, {}), "");
  EXPECT_EQ(refusal({.step_seconds = 1}, link, {}), "parameters must be > 0, got 0");
  EXPECT_EQ(refusal({.parameters = 1}, link, {}), "step_seconds must be positive and finite, got 0");
  EXPECT_EQ(refusal({1, NAN}, link, {}), "step_seconds must be positive and finite, got nan");
  EXPECT_EQ(refusal({1, 1, 0}, link, {}), "layers must be >= 1, got 0");
  EXPECT_EQ(refusal({1, 1, 1, 0}, link, {}), "replicas must be >= 1, got 0");
  EXPECT_EQ(refusal(job, {-1}, {}), "bits_per_second must be > 0, got -1");
  EXPECT_EQ(refusal(job, {NAN}, {}), "bits_per_second must be > 0, got nan");
  EXPECT_EQ(refusal(job, {1, -0.5}, {}), "latency_seconds must be >= 0 and finite, got -0.5");
  EXPECT_EQ(refusal(job, link, {.fragments = 0}), "fragments must be >= 1, got 0");
  EXPECT_EQ(refusal(job, link, {.sync_every = 3, .fragments = 4}),
            "sync_every must be >= fragments, got 3 for 4 fragments");
  EXPECT_EQ(refusal(job, link, {.sync_every = 3, .delay = -1}), "delay must be >= 0, got -1");
  EXPECT_EQ(refusal(job, link, {.bits = 0}), "bits must be positive and finite, got 0");
  EXPECT_EQ(refusal(job, link, {.fragments = 3, .sending = during_backward}),
            "fragments that are sent during backward must be <= layers, got 3 for 2 layers");
}

TEST(BandwidthNeeded, RefusesWhatCannotBe) {
  const Job job{.parameters = 1, .step_seconds = 1};
  EXPECT_EQ(refused([&] { bandwidth_needed(job, 0, {}, 1); }), "target must be in (0, 1), got 1");
  EXPECT_EQ(refused([&] { bandwidth_needed(job, 0, {}, 0); }), "target must be in (0, 1), got 0");
  EXPECT_EQ(refused([&] { bandwidth_needed(job, -1, {}, 0.5); }), "latency_seconds must be >= 0 and finite, got -1");
}

}  // namespace
}  // namespace outerloop::planner
