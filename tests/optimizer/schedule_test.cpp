#include <outerloop/outerloop.hpp>

#include <limits>

#include "optimizer/models.hpp"
#include "optimizer/schedule.hpp"
#include "optimizer/thrown.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// Which steps end in a round, and what keeps replicas at the same one.

namespace outerloop::testing {
namespace {

using torch::optim::SGD;

/// The steps at which rounds began.
struct Log {
  std::vector<int64_t> steps;
  SyncOptions options() {
    return {.on_sync = [this](const SyncReport& report) { steps.push_back(report.inner_step); }};
  }
};
using Steps = std::vector<int64_t>;

/// By the definition: f is sent after `step` if it is applied after step + delay, in some window.
std::optional<size_t> sent_by_definition(int64_t step, int64_t sync_every, int64_t n, int64_t delay) {
  for (int64_t f = 0; f < n; ++f) {
    for (int64_t applied = (sync_every * (f + 1) + n - 1) / n; applied <= step + delay; applied += sync_every) {
      if (applied == step + delay) return static_cast<size_t>(f);
    }
  }
  return std::nullopt;
}

TEST(Schedule, SendsTheFragmentThatIsAppliedDelayStepsLater) {
  for (int64_t sync_every = 1; sync_every <= 64; ++sync_every) {
    for (int64_t n = 1; n <= std::min<int64_t>(8, sync_every); ++n) {
      for (int64_t delay = 0; delay <= 130; ++delay) {
        const optimizer::Schedule schedule(sync_every, n, delay);
        std::vector<int64_t> sent(n);
        for (int64_t step = 1; step <= sync_every; ++step) {
          const auto fragment = schedule.sent_after(step);
          ASSERT_EQ(fragment, sent_by_definition(step, sync_every, n, delay))
              << "sync_every " << sync_every << ", " << n << " fragments, delay " << delay << ", step " << step;
          ASSERT_EQ(fragment, schedule.sent_after(step + sync_every));
          if (fragment) ++sent[*fragment];
        }
        ASSERT_EQ(sent, std::vector<int64_t>(n, 1)) << "each once in a window";
      }
    }
  }
}

TEST(Schedule, OfEnormousWindowsDoesNotOverflow) {
  const int64_t sync_every = int64_t{1} << 61;
  const optimizer::Schedule schedule(sync_every, 8, 0);
  EXPECT_EQ(schedule.sent_after(1), std::nullopt);
  EXPECT_EQ(schedule.sent_after(sync_every / 8), 0);
  EXPECT_EQ(schedule.sent_after(sync_every), 7);

  const int64_t longest = std::numeric_limits<int64_t>::max();  // 7 (mod 8)
  EXPECT_EQ(optimizer::Schedule(8, 1, longest).sent_after(1), 0);
  EXPECT_EQ(optimizer::Schedule(longest, 1, longest - 1).sent_after(1), 0);
  EXPECT_EQ(optimizer::Schedule(longest, 1, longest - 1).sent_after(longest - 1), std::nullopt);
}

TEST(Schedule, RoundsEndEverySyncEverySteps) {
  const auto rounds_of = [](int64_t sync_every) {
    Log log;
    const auto param = leaf(eighths({3}, 0));
    LocalSGDOptimizer optimizer(SGD({param}, 0.5), connect_alone(), {.sync_every = sync_every, .sync = log.options()});
    for (int step = 1; step <= 12; ++step) {
      optimizer.step();
      EXPECT_EQ(optimizer.local_steps(), step);
      EXPECT_EQ(optimizer.rounds(), step / sync_every);
    }
    return log.steps;
  };
  EXPECT_EQ(rounds_of(1), (Steps{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(rounds_of(2), (Steps{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(rounds_of(3), (Steps{3, 6, 9, 12}));
  EXPECT_EQ(rounds_of(5), (Steps{5, 10}));
  EXPECT_EQ(rounds_of(12), (Steps{12}));
  EXPECT_EQ(rounds_of(13), (Steps{}));
}

TEST(Schedule, IsTheSameAcrossSaveAndLoadAtEveryStep) {
  for (int64_t saved_at = 0; saved_at <= 7; ++saved_at) {
    Log log;
    const auto param = leaf(eighths({3}, 0));
    std::stringstream file;
    {
      LocalSGDOptimizer first(SGD({param}, 0.5), connect_alone(), {.sync_every = 3, .sync = log.options()});
      for (int64_t step = 1; step <= saved_at; ++step) first.step();
      torch::save(first, file);
    }
    LocalSGDOptimizer second(SGD({param}, 0.5), connect_alone(), {.sync_every = 3, .sync = log.options()});
    torch::load(second, file);
    for (int64_t step = saved_at + 1; step <= 10; ++step) second.step();
    EXPECT_EQ(log.steps, (Steps{3, 6, 9})) << "saved at " << saved_at;
  }
}

TEST(Schedule, SyncMakesARoundNowAndLeavesTheScheduleAsItIs) {
  Log log;
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const auto param = leaf(eighths({3}, 0));
    LocalSGDOptimizer optimizer(SGD({param}, 0.5), comm,
                                {.sync_every = 3, .sync = comm->rank() == 0 ? log.options() : SyncOptions{}});
    const auto step = [&] { step_with_grad(optimizer, {param}, comm->rank() + 1); };
    step();
    optimizer.sync();
    EXPECT_TRUE(same_bits(param, eighths({3}, 0) - 0.75));
    EXPECT_EQ(optimizer.local_steps(), 1);
    for (int i = 0; i < 5; ++i) step();
    EXPECT_TRUE(same_bits(param, eighths({3}, 0) - 6 * 0.75));
  });
  EXPECT_EQ(log.steps, (Steps{1, 3, 6}));
}

TEST(Schedule, ManyParametersMeetInOneRoundPerSyncEverySteps) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> params;
    for (int i = 0; i < 20; ++i) params.push_back(leaf(eighths({3}, i)));
    const auto tapped = std::make_shared<Tapped>(comm);
    LocalSGDOptimizer optimizer(SGD(params, 0.5), tapped, {.sync_every = 4});
    std::vector<size_t> reductions;
    for (int step = 1; step <= 8; ++step) {
      tapped->calls.clear();
      step_with_grad(optimizer, params, 1);
      reductions.push_back(std::count_if(tapped->calls.begin(), tapped->calls.end(),
                                         [](const auto& call) { return call.name == "all_reduce_sum"; }));
    }
    EXPECT_EQ(reductions, (std::vector<size_t>{0, 0, 0, 1, 0, 0, 0, 1}));
  });
}

TEST(StepCount, MismatchAtARoundIsAConsistencyErrorOnEveryReplicaThatChangesNothing) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto param = leaf(eighths({3}, 0));
    DiLoCoOptimizer optimizer(SGD({param}, 0.5), comm, {.sync_every = 2});
    if (comm->rank() == 1) step_with_grad(optimizer, {param}, 1);  // rank 0 lost this step: a scaler's skip, a NaN
    const Thrown thrown = thrown_by([&] {
      if (comm->rank() == 0) step_with_grad(optimizer, {param}, 1);
      if (comm->rank() == 0) optimizer.sync();
      if (comm->rank() == 1) step_with_grad(optimizer, {param}, 1);
    });
    EXPECT_TRUE(is(thrown, "ConsistencyError", {"1", "2"}));
    EXPECT_EQ(optimizer.rounds(), 0);
    EXPECT_TRUE(same_bits(optimizer.anchors()[0], eighths({3}, 0)));
    // The group still works: rank 0 catches up, and both meet.
    if (comm->rank() == 0) optimizer.skip_step();
    if (comm->rank() == 1) optimizer.sync();
    EXPECT_EQ(optimizer.rounds(), 1);
  });
}

TEST(StepCount, SkipStepKeepsReplicasInStep) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto param = leaf(eighths({3}, 0));
    LocalSGDOptimizer optimizer(SGD({param}, 0.5), comm, {.sync_every = 2});
    for (int step = 1; step <= 4; ++step) {
      const bool overflow = comm->rank() == 1 && (step == 1 || step == 4);  // the last one on the schedule
      overflow ? optimizer.skip_step() : step_with_grad(optimizer, {param}, 1);
    }
    EXPECT_EQ(optimizer.local_steps(), 4);
    EXPECT_EQ(optimizer.rounds(), 2);
    EXPECT_TRUE(same_bits(param, eighths({3}, 0) - (4 + 2) * 0.25));
  });
}

TEST(StepCount, SkipStepTouchesNeitherParametersNorInnerState) {
  const auto param = leaf(eighths({3}, 0));
  LocalSGDOptimizer optimizer(SGD({param}, torch::optim::SGDOptions(0.5).momentum(0.5)), connect_alone());
  param.mutable_grad() = torch::full({3}, std::numeric_limits<float>::quiet_NaN());
  optimizer.skip_step();
  EXPECT_TRUE(same_bits(param, eighths({3}, 0)));
  EXPECT_TRUE(optimizer.inner().state().empty());
  EXPECT_EQ(optimizer.local_steps(), 1);
}

}  // namespace
}  // namespace outerloop::testing
