#include "planner/probe.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "planner/link.hpp"
#include "planner/refused.hpp"
#include "support/ranks.hpp"

namespace outerloop::planner {
namespace {

using testing::run_ranks;

struct Probed {
  Link link;
  double seconds = 0;  ///< on the group's clock
  std::vector<testing::Tapped::Call> calls;
};

/// Every rank has a clock of its own, which only the link moves.
std::vector<Probed> probe_by_made_up_clock(int size, const Link& link, double seconds) {
  return run_ranks(size, [&](const std::shared_ptr<Communicator>& group) {
    double now = 100;
    const auto comm = behind(link, group, [&](double passed) { now += passed; });
    const Link found = probe(*comm, seconds, [&] { return now; });
    return Probed{found, now - 100, comm->calls};
  });
}

struct Case {
  Link link;
  double seconds;
};
class ProbedLink : public ::testing::TestWithParam<Case> {};
TEST_P(ProbedLink, IsFoundOnEveryRankInTime) {
  const auto [link, seconds] = GetParam();
  for (const int size : {2, 3}) {
    for (const Probed& rank : probe_by_made_up_clock(size, link, seconds)) {
      EXPECT_NEAR(rank.link.bits_per_second, link.bits_per_second, 1e-6 * link.bits_per_second);
      EXPECT_NEAR(rank.link.latency_seconds, link.latency_seconds, 1e-9);
      EXPECT_LE(rank.seconds, 1.5 * seconds);
      EXPECT_GE(rank.seconds, 0.5 * seconds);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Links, ProbedLink,
                         ::testing::Values(Case{{1e6, 0}, 2}, Case{{50e6, 0.04}, 2}, Case{{1e9, 0.002}, 0.2},
                                           Case{{1e10, 1e-4}, 0.05}));

TEST(Probe, TakesFourteenCollectivesWhereTheyTakeLongerThanTheTime) {
  const Link slow{.bits_per_second = 1e9, .latency_seconds = 3};
  for (const Probed& rank : probe_by_made_up_clock(2, slow, 2)) {
    EXPECT_GT(rank.link.bits_per_second, 0);
    EXPECT_LE(rank.link.latency_seconds, 3);
    EXPECT_LE(rank.calls.size(), 14u);
  }
}

/// Then bandwidth cannot be told, but what is told gives the times again.
TEST(Probe, FindsALinkWhereBytesCostNothing) {
  const Link flat{.bits_per_second = 1e30, .latency_seconds = 0.5};
  const auto ranks = probe_by_made_up_clock(2, flat, 2);
  const int64_t numel = ranks[0].calls[ranks[0].calls.size() - 3].numel;  // before the last order and the result
  EXPECT_EQ(numel, 1024);
  EXPECT_GT(ranks[0].link.bits_per_second, 0);
  EXPECT_NEAR(seconds_for(ranks[0].link, 2, {"all_reduce_sum", at::kFloat, numel}), 0.5, 1e-9);
}

TEST(Probe, EveryRankMakesTheSameCallsWhateverItsOwnClockAndSecondsSay) {
  const auto calls = run_ranks(2, [](const std::shared_ptr<Communicator>& group) {
    double now = 0;
    const auto comm =
        behind({.bits_per_second = 1e8 * (1 + group->rank())}, group, [&](double passed) { now += passed; });
    probe(*comm, 1 + group->rank(), [&] { return now; });
    return comm->calls;
  });
  ASSERT_EQ(calls[0].size(), calls[1].size());
  for (size_t i = 0; i < calls[0].size(); ++i) {
    EXPECT_EQ(calls[0][i].name, calls[1][i].name);
    EXPECT_EQ(calls[0][i].numel, calls[1][i].numel);
  }
}

/// By the real clock. The link sleeps, so that what else the machine does hardly counts; a factor covers the rest.
TEST(Probe, MeasuresALinkThatSleeps) {
  const Link link{.bits_per_second = 50e6, .latency_seconds = 0.01};
  const auto found = run_ranks(2, [&](const std::shared_ptr<Communicator>& group) {
    const auto sleep = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
    return probe(*behind(link, group, sleep), 1);
  });
  EXPECT_GE(found[0].latency_seconds, link.latency_seconds);
  EXPECT_LE(found[0].latency_seconds, 3 * link.latency_seconds);
  EXPECT_GE(found[0].bits_per_second, link.bits_per_second / 2);
  EXPECT_LE(found[0].bits_per_second, link.bits_per_second * 2);
  EXPECT_EQ(found[0].bits_per_second, found[1].bits_per_second);
  EXPECT_EQ(found[0].latency_seconds, found[1].latency_seconds);
}

TEST(Probe, MeasuresARealGroupInTime) {
  const auto begun = std::chrono::steady_clock::now();
  for (const Link& link : run_ranks(2, [](const std::shared_ptr<Communicator>& comm) { return probe(*comm, 0.2); })) {
    EXPECT_GT(link.bits_per_second, 0);
    EXPECT_TRUE(std::isfinite(link.bits_per_second));
    EXPECT_GT(link.latency_seconds, 0);
    EXPECT_LT(link.latency_seconds, 10);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
}

TEST(Probe, AGroupOfOneHasNoLink) {
  const Link link = probe(*connect_alone());
  EXPECT_EQ(link.bits_per_second, std::numeric_limits<double>::infinity());
  EXPECT_EQ(link.latency_seconds, 0);
}

TEST(Probe, RefusesNoTime) {
  const auto alone = connect_alone();
  EXPECT_EQ(refused([&] { probe(*alone, 0); }), "seconds must be positive and finite, got 0");
  EXPECT_EQ(refused([&] { probe(*alone, NAN); }), "seconds must be positive and finite, got nan");
}

}  // namespace
}  // namespace outerloop::planner
