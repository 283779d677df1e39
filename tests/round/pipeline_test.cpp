#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <outerloop/outerloop.hpp>

#include <chrono>
#include <cmath>
#include <map>

#include "round/replica.hpp"
#include "support/faults.hpp"
#include "support/limited_memory.hpp"

// Rounds over a group with lanes: in pieces, formed and stepped while others travel.

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::normal;
using testing::same_bits;
using testing::Tapped;

/// Three pieces, more than one lane has under way: float32, cut inside a strided parameter, and float64.
std::vector<Tensor> long_model() {
  return {testing::parameter(normal({7}, 1)), testing::parameter(normal({1 << 11, 1 << 10}, 2).t()),
          testing::parameter(normal({1000, 300}, 3, at::kBFloat16)),
          testing::parameter(normal({5000}, 4, at::kDouble))};
}

struct Trained {
  std::vector<Tensor> params = long_model(), anchors = {};
  std::vector<SyncReport> reports = {};
};

void set_gradients(const std::vector<Tensor>& params, int step, int rank) {
  for (size_t i = 0; i < params.size(); ++i) {
    const uint64_t seed = 1000 * rank + 10 * step + i;
    params[i].mutable_grad() = normal(params[i].sizes(), seed, params[i].scalar_type());
  }
}

/// Three rounds with momentum, weights, and keep_local.
Trained train(const std::shared_ptr<Communicator>& comm, DiLoCoOptions options) {
  Trained trained;
  options.sync_every = 2;
  options.streaming.keep_local = 0.25;
  options.sync.weight = [rank = comm->rank()] { return 1 + 0.5 * rank; };
  options.sync.on_sync = [&trained](const SyncReport& report) { trained.reports.push_back(report); };
  DiLoCoOptimizer optimizer(torch::optim::SGD(trained.params, 0.1), comm, options);
  for (int step = 0; step < 6; ++step) {
    set_gradients(trained.params, step, comm->rank());
    optimizer.step();
  }
  trained.anchors = optimizer.anchors();
  return trained;
}

std::vector<Trained> train_all(int replicas, int lanes, const DiLoCoOptions& options = {}) {
  return testing::run_ranks(testing::gloo_group(replicas, 60s, lanes),
                            [&](std::shared_ptr<Communicator> comm) { return train(comm, options); });
}

TEST(Pipeline, OfTwoReplicasGivesTheBitsOfOnePieceWhateverTheLanes) {
  const auto whole = train_all(2, 0);
  ASSERT_EQ(whole[0].reports.size(), 3);
  for (const int lanes : {1, 3}) {
    const auto pieces = train_all(2, lanes);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(same_bits(pieces[rank].params, whole[rank].params)) << lanes << " lanes, rank " << rank;
      EXPECT_TRUE(same_bits(pieces[rank].anchors, whole[rank].anchors)) << lanes << " lanes, rank " << rank;
      for (size_t i = 0; i < 3; ++i) {
        const SyncReport &a = pieces[rank].reports.at(i), &b = whole[rank].reports[i];
        EXPECT_NEAR(a.delta_norm, b.delta_norm, 1e-12 * b.delta_norm);
        EXPECT_NEAR(a.mean_delta_norm, b.mean_delta_norm, 1e-12 * b.mean_delta_norm);
        EXPECT_EQ(a.wire_bytes, b.wire_bytes);
        EXPECT_EQ(a.round, b.round);
      }
    }
  }
}

TEST(Pipeline, GivesTheSameBitsOnAllRanksAndFromRunToRun) {
  const auto once = train_all(3, 2), again = train_all(3, 2);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(same_bits(once[rank].anchors, once[0].anchors)) << "rank " << rank;
    EXPECT_TRUE(same_bits(again[rank].anchors, once[rank].anchors)) << "rank " << rank;
    EXPECT_TRUE(same_bits(again[rank].params, once[rank].params)) << "rank " << rank;
  }
}

TEST(Pipeline, OfPlainAveragesHasNoVelocities) {
  const DiLoCoOptions averages{.outer_lr = 1, .outer_momentum = 0};
  const auto whole = train_all(2, 0, averages), pieces = train_all(2, 2, averages);
  EXPECT_TRUE(same_bits(pieces[1].anchors, whole[1].anchors));
}

TEST(Pipeline, SendsRoundsWithADelayInPiecesToo) {
  DiLoCoOptions late;
  late.streaming.delay = 1;
  const auto whole = train_all(2, 0, late), pieces = train_all(2, 2, late);
  EXPECT_TRUE(same_bits(pieces[0].params, whole[0].params));
}

/// What the ranks of a group do in one round, in order.
std::vector<Tapped::Call> calls_of_a_round(const DiLoCoOptions& options, std::shared_ptr<Communicator> comm) {
  const auto tapped = std::make_shared<Tapped>(comm);
  const std::vector<Tensor> params{testing::parameter(torch::zeros({5 << 19}))};
  DiLoCoOptimizer optimizer(torch::optim::SGD(params, 0.1), tapped, options);
  tapped->calls.clear();
  optimizer.sync();
  return tapped->calls;
}

TEST(Pipeline, TravelsInPiecesBetweenTwoExchangesOfHeaders) {
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    const auto calls = calls_of_a_round({}, comm);
    ASSERT_GE(calls.size(), 4);
    EXPECT_EQ(calls.front().name, "all_gather");
    EXPECT_EQ(calls.back().name, "all_gather");
    int64_t numel = 0;
    for (size_t i = 1; i + 1 < calls.size(); ++i) {
      EXPECT_EQ(calls[i].name, "all_reduce_sum");
      numel += calls[i].numel;
    }
    EXPECT_EQ(numel, 5 << 19);
  });
}

/// Three rounds; before the second, rank 1 does `what`, and an anchor or velocity that it changed shows in the third.
template <class What>
std::vector<Trained> disturbed(int lanes, const SyncOptions& sync, const What& what) {
  return testing::run_ranks(testing::gloo_group(2, 60s, lanes), [&](std::shared_ptr<Communicator> comm) {
    Trained trained;
    DiLoCoOptions options{.sync_every = 1, .sync = sync};
    int round = 0;
    options.sync.on_sync = [&](const SyncReport& report) { trained.reports.push_back(report); };
    options.sync.commit_if = [&](const SyncReport& report) {
      EXPECT_NE(report.delta_norm, 0);  // known before anybody is asked
      return sync.commit_if == nullptr || round != 1 || comm->rank() != 1;
    };
    DiLoCoOptimizer optimizer(torch::optim::SGD(trained.params, 0.1), comm, options);
    for (; round < 3; ++round) {
      set_gradients(trained.params, round, comm->rank());
      if (round == 1 && comm->rank() == 1) what(trained.params);
      optimizer.step();
    }
    trained.anchors = optimizer.anchors();
    return trained;
  });
}

template <class What>
void expect_abort(const std::string& reason, const SyncOptions& sync, const What& what) {
  const auto whole = disturbed(0, sync, what), pieces = disturbed(2, sync, what);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(pieces[rank].reports.size(), 3);
    EXPECT_EQ(pieces[rank].reports[1].outcome, Outcome::aborted);
    EXPECT_EQ(pieces[rank].reports[1].reason, whole[rank].reports[1].reason);
    EXPECT_TRUE(testing::says(pieces[rank].reports[1].reason, reason));
    EXPECT_EQ(whole[rank].reports[1].wire_bytes, 0);
    EXPECT_EQ(pieces[rank].reports[1].wire_bytes, pieces[rank].reports[0].wire_bytes);  // they had travelled
    EXPECT_EQ(pieces[rank].reports[2].outcome, Outcome::committed);
    EXPECT_TRUE(same_bits(pieces[rank].params, whole[rank].params)) << "rank " << rank;
    EXPECT_TRUE(same_bits(pieces[rank].anchors, whole[rank].anchors)) << "rank " << rank;
  }
}

TEST(Pipeline, AbortsOnAllRanksWhenTheLastPieceOfOneIsNotFinite) {
  expect_abort("rank 1 has 1 non-finite elements", {},
               [](const std::vector<Tensor>& params) { params[2].mutable_grad().view(-1)[299'999] = std::nan(""); });
}

TEST(Pipeline, AbortsOnAllRanksWhenOneSaysNo) {
  expect_abort("commit_if said no on rank 1", {.commit_if = [](const SyncReport&) { return false; }},
               [](const std::vector<Tensor>&) {});
}

/// A round after every second of four steps, in which rank 1's reduction `failing` of the second round fails, if it is
/// one; then a new group and the round again.
std::vector<Trained> failing_at(int failing, int lanes) {
  const auto first = testing::gloo_group(2, 2s, lanes), second = testing::gloo_group(2, 60s, lanes);
  return testing::run_ranks(first, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    int reductions = -1;  // of the second round
    const auto tapped = std::make_shared<Tapped>(comm, [&](const Tapped::Call& call) {
      if (reductions >= 0 && call.name == "all_reduce_sum" && reductions++ == failing && rank == 1) {
        throw CommError("pulled the plug");
      }
    });
    Trained trained;
    DiLoCoOptimizer optimizer(torch::optim::SGD(trained.params, 0.1), tapped, {.sync_every = 2});
    const auto step = [&](int number) {
      set_gradients(trained.params, number, rank);
      optimizer.step();
    };
    for (int number = 0; number < 3; ++number) step(number);
    if (failing < 0) {
      step(3);
    } else {
      const auto anchors = optimizer.anchors();
      std::vector<Tensor> local;
      for (const Tensor& param : trained.params) local.push_back(param.detach().clone());
      reductions = 0;
      EXPECT_THROW(step(3), CommError);
      EXPECT_TRUE(same_bits(optimizer.anchors(), anchors));
      EXPECT_EQ(optimizer.rounds(), 1);
      for (size_t i = 0; i < local.size(); ++i) {  // the inner step was taken, and nothing else happened
        EXPECT_TRUE(torch::allclose(trained.params[i], local[i] - 0.1 * trained.params[i].grad(), 1e-2, 1e-2));
        EXPECT_FALSE(same_bits(trained.params[i].detach(), anchors[i].to(local[i].scalar_type())));
      }
      reductions = -1;
      optimizer.reconnect(second[rank]);
      optimizer.sync();
    }
    trained.anchors = optimizer.anchors();
    return trained;
  });
}

TEST(Pipeline, ThatFailsHalfWayChangesNothingAndCanBeHeldAgain) {
  const auto undisturbed = failing_at(-1, 0);
  for (const int failing : {0, 2}) {
    const auto all = failing_at(failing, 2);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(same_bits(all[rank].params, undisturbed[rank].params)) << "piece " << failing << ", rank " << rank;
      EXPECT_TRUE(same_bits(all[rank].anchors, undisturbed[rank].anchors)) << "piece " << failing << ", rank " << rank;
    }
  }
}

/// Rank 1's, before the first round.
void converted(size_t parameter, at::ScalarType type) {
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [&](std::shared_ptr<Communicator> comm) {
    std::vector<SyncReport> reports;
    const std::vector<Tensor> params = long_model();
    DiLoCoOptimizer optimizer(torch::optim::SGD(params, 0.1), comm,
                              {.sync = {.on_sync = [&](const SyncReport& report) { reports.push_back(report); }}});
    const auto anchors = optimizer.anchors();
    if (comm->rank() == 1) {
      params[parameter].set_data(params[parameter].detach().to(type));
      EXPECT_THROW(optimizer.sync(), c10::Error);
    } else {
      optimizer.sync();
      ASSERT_EQ(reports.size(), 1);
      EXPECT_EQ(reports[0].outcome, Outcome::aborted);
      EXPECT_TRUE(testing::says(reports[0].reason, "rank 1 failed: parameter"));
    }
    EXPECT_EQ(optimizer.rounds(), 0);
    EXPECT_TRUE(same_bits(optimizer.anchors(), anchors));
  });
}

TEST(Pipeline, OfAModelThatOneRankConvertedAbortsOnAll) {
  converted(3, at::kFloat);
  converted(1, at::kBFloat16);
}

TEST(Pipeline, ThatFailsGivesItsVectorsBackForTheNext) {
  testing::LimitedMemory::install();
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    constexpr int64_t length = 10'000;
    int asked = 0;
    testing::Replica replica(comm,
                             testing::with_momentum({.commit_if =
                                                         [&](const SyncReport&) {
                                                           ++asked;
                                                           if (asked % 2 == 0) throw std::domain_error("no");
                                                           return true;
                                                         }}),
                             torch::zeros({length}));
    for (int step = 1; step <= 10; ++step) {
      replica.param.mutable_grad() = torch::ones_like(replica.param).detach();
      testing::too_much = step > 2 ? 4 * length : SIZE_MAX;
      const auto inner_or_round = [&] { replica.optimizer.step(); };
      if (step % 4 == 0) {
        EXPECT_THROW(inner_or_round(), std::domain_error);
      } else {
        EXPECT_NO_THROW(inner_or_round());
      }
      testing::too_much = SIZE_MAX;
    }
    EXPECT_EQ(replica.optimizer.rounds(), 3);
  });
}

thread_local std::map<std::string, int> ranges;  ///< that a profiler sees on this thread

TEST(Pipeline, ShowsAProfilerEachPiecesPart) {
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    const auto count = [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
      ++ranges[range.name()];
      return nullptr;
    };
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
    train(comm, {});
    at::removeCallback(handle);
    constexpr int rounds = 3, pieces = 3;
    EXPECT_EQ(ranges["outerloop::send"], rounds * pieces);
    EXPECT_EQ(ranges["outerloop::reduce"], rounds * pieces);
    EXPECT_EQ(ranges["outerloop::apply"], rounds * (pieces + 1));  // each is stepped, and all are taken together
  });
}

/// A group with lanes that come and go.
struct Fickle final : Communicator {
  explicit Fickle(std::shared_ptr<Communicator> group, bool has_lanes) : group(std::move(group)), has(has_lanes) {}
  int rank() const override { return group->rank(); }
  int size() const override { return group->size(); }
  at::Device device() const override { return group->device(); }
  Pending all_reduce_sum(Tensor flat) override { return group->all_reduce_sum(flat); }
  Pending all_gather(Tensor rows, Tensor flat) override { return group->all_gather(rows, flat); }
  Pending all_to_all(Tensor out, Tensor in) override { return group->all_to_all(out, in); }
  Pending broadcast(Tensor flat, int root) override { return group->broadcast(flat, root); }
  std::vector<std::shared_ptr<Communicator>> lanes() override {
    return has ? group->lanes() : std::vector<std::shared_ptr<Communicator>>{};
  }
  std::shared_ptr<Communicator> group;
  bool has;
};

TEST(Pipeline, OnOneRankOnlyIsRefusedByAll) {
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    const auto group = std::make_shared<Fickle>(comm, true);
    testing::Replica replica(group);
    group->has = comm->rank() == 0;
    EXPECT_TRUE(testing::says(testing::message_of<ConsistencyError>([&] { replica.step(1); }),
                              "rank 0 sends this round in pieces, rank 1 whole"));
    EXPECT_TRUE(replica.reports.empty());
    group->has = true;
    replica.step(1);
    EXPECT_EQ(replica.reports.size(), 1);
  });
}

TEST(Pipeline, OfAGroupThatLostItsLanesIsRefusedByAllRanks) {
  testing::run_ranks(testing::gloo_group(2, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) comm = std::make_shared<Fickle>(comm, false);
    EXPECT_TRUE(testing::says(testing::message_of<ConsistencyError>([&] { testing::Replica replica(comm); }),
                              "rank 0 has lanes 2, rank 1 has lanes 0"));
  });
}

}  // namespace
}  // namespace outerloop
