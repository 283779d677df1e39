#include "planner/traffic.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace outerloop::planner {
namespace {

/// When each message is in one of the two events, by message.
std::vector<double> steps_of(const Traffic& traffic, Event event) {
  std::vector<double> steps(traffic.messages);
  for (const Moment& at : traffic.moments) {
    if (at.event == event) steps[at.message] = at.step;
  }
  return steps;
}

TEST(Traffic, OfFragmentsFollowsTheSchedule) {
  const Traffic traffic = traffic_of({}, {.sync_every = 7, .fragments = 3, .delay = 3});
  EXPECT_EQ(steps_of(traffic, Event::needed), (std::vector<double>{3, 5, 7}));
  EXPECT_EQ(steps_of(traffic, Event::ready), (std::vector<double>{7, 2, 4}));  // the first, in the round before
  EXPECT_EQ(traffic.trips, 2);
}

TEST(Traffic, WithALongDelayIsReadyAgainBeforeItIsNeeded) {
  for (const Moment& at : traffic_of({}, {.sync_every = 7, .fragments = 3, .delay = 17}).moments) {
    EXPECT_EQ(at.since, at.event == Event::needed ? 2 : 0);
  }
  for (const Moment& at : traffic_of({}, {.sync_every = 7, .delay = 7}).moments) {
    EXPECT_EQ(at.since, at.event == Event::needed ? 1 : 0);
  }
}

TEST(Traffic, OfLayersLiesWithinTheSteps) {
  const Traffic traffic = traffic_of({.layers = 4}, {2, 2, 0, 32, Sending::during_backward});
  EXPECT_EQ(steps_of(traffic, Event::ready),
            (std::vector<double>{1, 2 - 1.0 / 4 * 2 / 3, 1 - 2.0 / 4 * 2 / 3, 2 - 3.0 / 4 * 2 / 3}));
  EXPECT_EQ(steps_of(traffic, Event::needed),
            (std::vector<double>{1, 1.0 / 4 / 3 + 2 - 2, 1 + 2.0 / 4 / 3, 3.0 / 4 / 3 + 2 - 2}));
  EXPECT_EQ(traffic.trips, 1);
}

TEST(Traffic, OfRoundsOfAnyLengthDoesNotOverflow) {
  const int64_t longest = int64_t{1} << 60;
  const Traffic traffic = traffic_of({}, {.sync_every = longest, .fragments = 64});
  EXPECT_EQ(steps_of(traffic, Event::needed).back(), static_cast<double>(longest));
}

}  // namespace
}  // namespace outerloop::planner
