#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <sstream>

#include "round/replica.hpp"
#include "support/faults.hpp"

/// Rounds between send and apply: when they are applied, and what may be done meanwhile.

namespace outerloop::testing {
namespace {

DiLoCoOptions delayed(int64_t delay, int64_t sync_every = 4, SyncOptions sync = {}) {
  DiLoCoOptions options = averaging(std::move(sync), sync_every);
  options.streaming.delay = delay;
  return options;
}

TEST(InFlight, RoundIsASnapshotAtItsSend) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, delayed(2));
    const double own = comm->rank() + 1;  // the mean is 1.5
    for (int step = 1; step <= 3; ++step) {
      replica.step(own);
      EXPECT_EQ(replica.optimizer.idle(), step == 1) << step;
    }
    EXPECT_TRUE(same_bits(replica.param, torch::full({3}, -3 * own)));
    EXPECT_EQ(replica.optimizer.rounds(), 0);
    replica.step(own);
    EXPECT_TRUE(same_bits(replica.param, torch::full({3}, -2 * 1.5)));
    EXPECT_TRUE(replica.optimizer.idle());
    ASSERT_EQ(replica.reports.size(), 1);
    EXPECT_EQ(replica.reports[0].inner_step, 2);
    EXPECT_EQ(replica.reports[0].staleness, 2);
  });
}

TEST(InFlight, SeveralRoundsOfAFragmentLandInOrder) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = delayed(10);
    options.streaming.keep_local = 1;
    Replica replica(comm, options);
    for (int step = 1; step <= 24; ++step) replica.step(1);
    std::vector<int64_t> sent;
    for (const SyncReport& report : replica.reports) {
      sent.push_back(report.inner_step);
      EXPECT_EQ(report.staleness, 10);
    }
    EXPECT_EQ(sent, (std::vector<int64_t>{2, 6, 10, 14}));
    // Each counts all that was done since the anchor was new: 2, 6, 10 against 0; 14 against the anchor after 12.
    EXPECT_TRUE(same_bits(replica.anchor(), torch::full({3}, -(2.0F + 6 + 10 + (14 - 2)))));
  });
}

TEST(InFlight, DrainAppliesAllNow) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, delayed(6));
    for (int step = 1; step <= 6; ++step) replica.step(comm->rank() + 1);
    EXPECT_FALSE(replica.optimizer.idle());
    replica.optimizer.drain();
    EXPECT_TRUE(replica.optimizer.idle());
    EXPECT_EQ(replica.optimizer.rounds(), 2);
    EXPECT_EQ(replica.reports.back().staleness, 0);
    replica.optimizer.drain();
    EXPECT_EQ(replica.optimizer.rounds(), 2);
  });
}

TEST(InFlight, SyncDrainsAndThenHoldsARoundOfEveryFragment) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = delayed(1);
    options.streaming.fragments = FragmentPlan::sequential(3);
    Replica replica(comm, options, torch::zeros({9}));
    replica.step(comm->rank() + 1);  // sends fragment 0
    EXPECT_FALSE(replica.optimizer.idle());
    replica.step(comm->rank() + 1);
    replica.optimizer.sync();
    EXPECT_TRUE(replica.optimizer.idle());
    std::vector<int64_t> fragments;
    for (const SyncReport& report : replica.reports) fragments.push_back(report.fragment);
    EXPECT_EQ(fragments, (std::vector<int64_t>{0, 1, 0, 1, 2}));
    EXPECT_TRUE(same_bits(replica.param, replica.anchor()));
  });
}

TEST(InFlight, SaveAndLoadWantADrainBefore) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, delayed(2));
    std::stringstream file;
    torch::save(replica.optimizer, file);
    for (int step = 1; step <= 3; ++step) replica.step(1);
    std::stringstream refused;
    EXPECT_TRUE(
        says(message_of<c10::Error>([&] { torch::save(replica.optimizer, refused); }), "1 rounds are under way"));
    EXPECT_TRUE(says(message_of<c10::Error>([&] { torch::load(replica.optimizer, file); }), "drain()"));
    replica.optimizer.drain();
    torch::save(replica.optimizer, refused);
  });
}

TEST(InFlight, ResumesBitForBitAfterADrainAtAnyStep) {
  for (int saved_at = 0; saved_at <= 9; ++saved_at) {
    run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      DiLoCoOptions options{.sync_every = 5, .outer_lr = 0.5, .outer_momentum = 0.5};
      options.streaming = {FragmentPlan::strided(3), 3, 0.25};
      const auto step = [&](Replica& replica, int t) { replica.step(gradient(comm->rank(), t)); };
      Replica whole(comm, options, torch::zeros({8}));
      for (int t = 0; t < saved_at; ++t) step(whole, t);
      whole.optimizer.drain();
      std::stringstream file;
      torch::save(whole.optimizer, file);
      const Tensor param = whole.param.detach().clone();
      for (int t = saved_at; t < 20; ++t) step(whole, t);
      whole.optimizer.drain();

      Replica second(comm, options, torch::zeros({8}));
      torch::load(second.optimizer, file);
      second.param.data().copy_(param);
      for (int t = saved_at; t < 20; ++t) step(second, t);
      second.optimizer.drain();
      EXPECT_TRUE(same_bits(second.param, whole.param)) << "saved at " << saved_at;
      EXPECT_TRUE(same_bits(second.anchor(), whole.anchor())) << "saved at " << saved_at;
      EXPECT_EQ(second.optimizer.rounds(), whole.optimizer.rounds());
    });
  }
}

TEST(InFlight, RoundThatANaNSpoilsAbortsAtItsApplyOnAllReplicas) {
  const auto all = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, delayed(2));
    replica.step(1);
    replica.step(comm->rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1);
    for (int step = 3; step <= 8; ++step) replica.step(1);
    return replica.outcomes();
  });
  expect_same_outcomes(all);
  EXPECT_EQ(all[0].reports[0].outcome, Outcome::aborted);
  EXPECT_EQ(all[0].reports[1].outcome, Outcome::committed);
}

TEST(InFlight, ExceptionOfACallbackComesAtItsApply) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    SyncOptions sync;
    sync.commit_if = [&](const SyncReport&) -> bool {
      if (comm->rank() == 1) throw std::runtime_error("disk full");
      return true;
    };
    Replica replica(comm, delayed(1, 4, sync));
    for (int step = 1; step <= 3; ++step) replica.step(1);
    if (comm->rank() == 1) {
      EXPECT_EQ(message_of<std::runtime_error>([&] { replica.step(1); }), "disk full");
    } else {
      replica.step(1);
      EXPECT_TRUE(says(replica.reports.at(0).reason, "rank 1 failed: disk full"));
    }
    EXPECT_EQ(replica.optimizer.rounds(), 0);
    EXPECT_TRUE(replica.optimizer.idle());
  });
}

TEST(InFlight, RoundFindsAndRepairsAnAnchorThatDiffers) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = delayed(3);
    options.sync.start = Start::trust;
    Replica replica(comm, options, torch::full({3}, comm->rank() == 1 ? 5.0F : 0.0F));
    for (int step = 1; step <= 8; ++step) replica.step(1);
    ASSERT_TRUE(replica.optimizer.idle());  // so the group is free
    EXPECT_TRUE(says(replica.reports.at(0).reason, "the anchor of rank 1 differs"));
    EXPECT_EQ(replica.reports.at(0).outcome, Outcome::committed);
    EXPECT_EQ(replica.reports.at(1).reason, "");
    const Tensor rows = torch::empty({3, 3});
    comm->all_gather(rows, replica.anchor()).wait();
    EXPECT_TRUE(torch::equal(rows[1], rows[0]) && torch::equal(rows[2], rows[0]));
  });
}

TEST(InFlight, FailureOfTheNetworkComesAtTheApplyAndChangesNothingOuter) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::atomic<bool> broken = false;
    const auto tapped = std::make_shared<Tapped>(comm, [&](const Tapped::Call& call) {
      if (broken && call.name == "all_reduce_sum") throw CommError("the cable is out");
    });
    Replica replica(tapped, delayed(2));
    for (int step = 1; step <= 5; ++step) replica.step(1);
    const Tensor anchor = replica.anchor();
    broken = true;
    replica.step(1);  // sends
    replica.step(1);
    EXPECT_TRUE(says(message_of<CommError>([&] { replica.step(1); }), "the cable is out"));
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    EXPECT_EQ(replica.optimizer.rounds(), 1);
    EXPECT_EQ(replica.optimizer.local_steps(), 8);
    EXPECT_TRUE(replica.optimizer.idle());
    broken = false;
    replica.optimizer.reconnect(comm);
    for (int step = 9; step <= 12; ++step) replica.step(1);
    EXPECT_EQ(replica.optimizer.rounds(), 2);
  });
}

TEST(InFlight, ReconnectDropsWhatIsUnderWay) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, delayed(2));
    for (int step = 1; step <= 3; ++step) replica.step(1);
    replica.optimizer.reconnect(comm);
    EXPECT_TRUE(replica.optimizer.idle());
    replica.step(1);
    EXPECT_EQ(replica.optimizer.rounds(), 0);
    for (int step = 5; step <= 8; ++step) replica.step(1);
    EXPECT_EQ(replica.optimizer.rounds(), 1);
  });
}

TEST(InFlight, ParametersThatJoinOrLeaveDrainFirst) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Tensor first = parameter(torch::zeros({4})), second = parameter(torch::zeros({4}));
    DiLoCoOptions options = delayed(3);
    options.streaming.fragments = FragmentPlan::sequential(2);
    DiLoCoOptimizer optimizer(torch::optim::SGD({first}, 1.0), comm, options);
    const auto step = [&] {
      for (const Tensor& param : {first, second}) param.mutable_grad() = torch::ones_like(param);
      optimizer.step();
    };
    step();
    EXPECT_FALSE(optimizer.idle());
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({second}));
    step();
    EXPECT_EQ(optimizer.anchors().size(), 2);
    for (int t = 0; t < 10; ++t) step();
    optimizer.sync();
    EXPECT_TRUE(same_bits(optimizer.anchors()[0], first.detach()));
    EXPECT_TRUE(same_bits(optimizer.anchors()[1], second.detach()));
  });
}

TEST(InFlight, OptimizerGoesWhileARoundIsUnderWay) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    {
      Replica replica(comm, delayed(3));
      replica.step(1);
      EXPECT_FALSE(replica.optimizer.idle());
    }
    Replica next(comm, delayed(0, 1));
    next.step(1);
    EXPECT_EQ(next.optimizer.rounds(), 1);
  });
}

TEST(InFlight, KeepLocalOneNeverHandsTheAnchorOut) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = delayed(2);
    options.streaming.keep_local = 1;
    Replica replica(comm, options);
    for (int step = 1; step <= 12; ++step) replica.step(comm->rank() + 1);
    EXPECT_TRUE(same_bits(replica.param, torch::full({3}, -12.0F * (comm->rank() + 1))));
  });
}

/// Two fragments of three parameters that are trained with the same gradient.
struct Two {
  Two(const std::shared_ptr<Communicator>& comm, DiLoCoOptions options, double start = 0)
      : params{parameter(torch::full({2}, start)), parameter(torch::full({3}, start)),
               parameter(torch::full({1}, start))},
        optimizer(torch::optim::SGD(params, 1.0), comm, recording(std::move(options))) {}
  Two(const Two&) = delete;

  void set_gradients(double gradient) {
    for (const Tensor& param : params) {
      if (param.requires_grad()) param.mutable_grad() = torch::full_like(param, gradient).detach();
    }
  }
  /// What it throws.
  template <class Body>
  std::string thrown(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  std::vector<Tensor> params;
  std::vector<SyncReport> reports;
  DiLoCoOptimizer optimizer;

 private:
  DiLoCoOptions recording(DiLoCoOptions options) {
    options.streaming.fragments = FragmentPlan::listed({{0, 2}, {1}});
    options.sync.on_sync = [this](const SyncReport& report) { reports.push_back(report); };
    return options;
  }
};

/// Rank 1's commit_if throws when it is asked for the first time.
SyncOptions throwing_once(int rank) {
  return {.commit_if = [rank, asked = 0](const SyncReport&) mutable {
    if (rank == 1 && asked++ == 0) throw std::runtime_error("no disk");
    return true;
  }};
}

TEST(InFlight, ExceptionOfACallbackWaitsUntilSyncIsOverOnAllReplicas) {
  for (const int64_t delay : {0, 4}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Two two(comm, delayed(delay, 8, throwing_once(comm->rank())));
      for (int step = 1; step <= 4; ++step) {  // with a delay, fragment 1 has been sent after the last
        two.set_gradients(1);
        EXPECT_EQ(two.thrown([&] { two.optimizer.step(); }), "");
        if (delay == 0 && step == 3) break;
      }
      EXPECT_EQ(two.thrown([&] { two.optimizer.sync(); }), comm->rank() == 1 ? "no disk" : "");
      EXPECT_TRUE(two.optimizer.idle());
      two.optimizer.sync();
      EXPECT_EQ(two.reports.back().outcome, Outcome::committed);
      const auto anchors = two.optimizer.anchors();
      for (int step = 0; step < 8; ++step) {
        two.set_gradients(1);
        two.optimizer.step();
      }
      two.optimizer.sync();
      EXPECT_EQ(two.reports.back().outcome, Outcome::committed);
      if (delay > 0) return;  // which loses steps
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(two.optimizer.anchors()[i], anchors[i] - 8));
    });
  }
}

TEST(InFlight, ExceptionOfACallbackWaitsUntilAFrozenParameterHasLeftOnAllReplicas) {
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Two two(comm, delayed(3, 8, throwing_once(comm->rank())));
    std::vector<std::string> thrown;
    for (int step = 1; step <= 24; ++step) {
      if (step == 2) two.params[2].set_requires_grad(false);
      two.set_gradients(1);
      std::string what = two.thrown([&] { two.optimizer.step(); });
      if (!what.empty()) thrown.push_back(what);
    }
    EXPECT_EQ(thrown, comm->rank() == 1 ? std::vector<std::string>{"no disk"} : std::vector<std::string>{});
    EXPECT_EQ(two.optimizer.local_steps(), 24);
    two.optimizer.sync();
    EXPECT_EQ(two.reports.back().outcome, Outcome::committed);
  });
}

TEST(InFlight, ReplicaWhoseDeltaIsNotFiniteLosesItInAllFragments) {
  for (const int64_t delay : {0, 1}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Two two(comm, delayed(delay));
      int aborted = 0;
      for (int step = 1; step <= 16; ++step) {
        // Whatever is not finite anywhere in the model is everywhere in the gradient.
        const bool finite = two.params[0].isfinite().all().item<bool>() && two.params[1].isfinite().all().item<bool>();
        two.set_gradients(finite && !(step == 1 && comm->rank() == 1) ? 1 : NAN);
        two.optimizer.step();
      }
      for (const SyncReport& report : two.reports) aborted += report.outcome == Outcome::aborted;
      EXPECT_LE(aborted, 2);
      EXPECT_EQ(two.reports.back().outcome, Outcome::committed);
    });
  }
}

TEST(InFlight, RoundIsNotDrainedByACallbackOfItsRepair) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Two* self = nullptr;
    int asked = 0;
    SyncOptions sync{.start = Start::trust};
    sync.commit_if = [&](const SyncReport&) {
      if (++asked == 2) self->optimizer.drain();
      return true;
    };
    Two two(comm, delayed(0, 2, sync), comm->rank());  // anchors differ
    self = &two;
    EXPECT_TRUE(says(two.thrown([&] { two.optimizer.sync(); }), "must not call the optimizer"));
    two.optimizer.sync();
    EXPECT_EQ(two.reports.back().outcome, Outcome::committed);
  });
}

/// The network takes until training has gone on by two steps.
TEST(InFlight, TrainingGoesOnWhileTheNetworkIsBusy) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    std::promise<void> trained;
    std::shared_future<void> free = trained.get_future().share();
    std::atomic<bool> slow = false;
    const auto tapped = std::make_shared<Tapped>(comm, [&](const Tapped::Call&) {
      if (!slow) return;
      EXPECT_EQ(free.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    });
    Replica replica(tapped, delayed(3));
    slow = true;
    for (int step = 1; step <= 3; ++step) replica.step(1);
    trained.set_value();
    replica.step(1);
    ASSERT_EQ(replica.reports.size(), 1);
    EXPECT_GT(replica.reports[0].reduce.count(), 0);
    EXPECT_EQ(replica.reports[0].outcome, Outcome::committed);
  });
}

}  // namespace
}  // namespace outerloop::testing
