#include <gtest/gtest.h>

#include "round/replica.hpp"

namespace outerloop {
namespace {

using testing::averaging;
using testing::Replica;
using testing::says;

/// Round 1 with `sync`, whose callbacks throw std::domain_error on rank 1 while *armed; then round 2 in peace.
std::vector<Replica::Outcomes> rank_one_throws(
    const std::function<SyncOptions(std::function<void()> maybe_throw)>& sync) {
  return testing::run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    bool armed = comm->rank() == 1;
    Replica replica(comm, averaging(sync([&armed] {
                      if (armed) throw std::domain_error("the callback's own words");
                    })));
    if (comm->rank() == 1) {
      EXPECT_THROW(replica.step(1), std::domain_error);
    } else {
      EXPECT_NO_THROW(replica.step(1));
    }
    armed = false;
    replica.step(0.5);
    EXPECT_EQ(replica.optimizer.local_steps(), 2);
    return replica.outcomes();
  });
}

/// The other ranks, 0 and 2, saw round 1 abort for the words of rank 1; all saw round 2 commit.
void expect_aborted_elsewhere(const std::vector<Replica::Outcomes>& all) {
  for (const int other : {0, 2}) {
    ASSERT_EQ(all[other].reports.size(), 2u);
    EXPECT_EQ(all[other].reports[0].outcome, Outcome::aborted);
    EXPECT_TRUE(says(all[other].reports[0].reason, "rank 1 failed: the callback's own words"));
  }
  for (const auto& outcomes : all) {
    EXPECT_EQ(outcomes.reports.back().outcome, Outcome::committed);
    EXPECT_EQ(outcomes.reports.back().round, 1);
    EXPECT_TRUE(torch::equal(outcomes.anchor, torch::full({3}, -0.5)));
    EXPECT_TRUE(torch::equal(outcomes.param, outcomes.anchor));
  }
}

TEST(Callbacks, CommitIfThatThrowsOnOneRankAbortsTheRoundOnAll) {
  expect_aborted_elsewhere(rank_one_throws([](std::function<void()> maybe_throw) {
    return SyncOptions{.commit_if = [=](const SyncReport&) {
      maybe_throw();
      return true;
    }};
  }));
}

TEST(Callbacks, InTheMiddleOfARoundMustNotCallTheOptimizer) {
  const auto all = testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica* self = nullptr;
    bool armed = true;
    Replica replica(comm, averaging({.commit_if = [&](const SyncReport&) {
                      if (std::exchange(armed, false)) self->optimizer.sync();
                      return true;
                    }}));
    self = &replica;
    EXPECT_TRUE(says(testing::message_of<c10::Error>([&] { replica.step(1); }), "middle of a round"));
    replica.step(0.5);
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -0.5)));
}

TEST(Callbacks, WeightThatThrowsOnOneRankAbortsTheRoundOnAll) {
  expect_aborted_elsewhere(rank_one_throws([](std::function<void()> maybe_throw) {
    return SyncOptions{.weight = [=] {
      maybe_throw();
      return 1.0;
    }};
  }));
}

TEST(Callbacks, OnSyncThatThrowsOnOneRankComesTooLateToAbort) {
  const auto all = rank_one_throws([](std::function<void()> maybe_throw) {
    return SyncOptions{.on_sync = [=](const SyncReport&) { maybe_throw(); }};
  });
  testing::expect_same_outcomes(all);
  for (const auto& outcomes : all) {
    EXPECT_EQ(outcomes.reports.at(0).outcome, Outcome::committed);
    EXPECT_EQ(outcomes.reports.at(1).round, 2);
    EXPECT_TRUE(torch::equal(outcomes.anchor, torch::full({3}, -1.5)));
  }
}

TEST(Callbacks, RunOncePerRoundOnTheThreadThatCallsStep) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::vector<std::string> calls;
    const auto note = [&, self = std::this_thread::get_id()](const char* name) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      calls.emplace_back(name);
    };
    Replica replica(comm, averaging({.weight =
                                         [&] {
                                           note("weight");
                                           return 1.0;
                                         },
                                     .commit_if =
                                         [&](const SyncReport&) {
                                           note("commit_if");
                                           return true;
                                         },
                                     .on_sync = [&](const SyncReport&) { note("on_sync"); }},
                                    2));
    replica.step(1);
    EXPECT_EQ(calls, std::vector<std::string>{});
    const std::vector<std::string> round{"weight", "commit_if", "on_sync"};
    replica.step(1);
    EXPECT_EQ(calls, round);
    calls.clear();
    replica.step(1);
    replica.optimizer.sync();
    EXPECT_EQ(calls, round);
  });
}

TEST(Callbacks, SeeTheReportOfTheRound) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.weight = [rank = comm->rank()] { return rank == 0 ? 1.0 : 3.0; }}, 2),
                    torch::zeros({16}));
    const double step = comm->rank() == 0 ? 1 : 0.5;  // deltas 2 and 1 per element, mean 1.25
    replica.step(step);
    replica.step(step);
    const SyncReport& report = replica.reports.at(0);
    EXPECT_EQ(report.inner_step, 2);
    EXPECT_EQ(report.round, 1);
    EXPECT_EQ(report.outcome, Outcome::committed);
    EXPECT_EQ(report.reason, "");
    EXPECT_EQ(report.delta_norm, comm->rank() == 0 ? 8 : 4);
    EXPECT_EQ(report.mean_delta_norm, 5);
    EXPECT_EQ(report.wire_bytes, 16 * 4);
    EXPECT_EQ(report.replicas, 2);
    EXPECT_EQ(report.weight, comm->rank() == 0 ? 1 : 3);
    EXPECT_EQ(report.without_grad, std::vector<int64_t>{});
    EXPECT_GT(report.send.count(), 0);
    EXPECT_GT(report.reduce_wait.count(), 0);
    EXPECT_GT(report.apply.count(), 0);
  });
}

TEST(Callbacks, SeeWhichParametersHadNoGradient) {
  Tensor used = testing::parameter(torch::zeros({2})), frozen = torch::zeros({2}), unused = testing::parameter(frozen);
  std::vector<int64_t> without_grad;
  LocalSGDOptimizer optimizer(
      torch::optim::SGD({used, frozen, unused}, 1.0), connect_alone(),
      {.sync_every = 1, .sync = {.on_sync = [&](const SyncReport& report) { without_grad = report.without_grad; }}});
  used.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_EQ(without_grad, std::vector<int64_t>{2});
}

}  // namespace
}  // namespace outerloop
