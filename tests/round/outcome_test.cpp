#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "round/replica.hpp"
#include "support/faults.hpp"

// A round commits on all ranks or on none, and all of them say why.

namespace outerloop {
namespace {

using testing::averaging;
using testing::Replica;
using testing::same_bits;
using testing::says;

TEST(Round, LeavesAllRanksWithTheSameBits) {
  struct End {
    std::vector<Tensor> params, anchors;
  };
  const auto ends = testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    const std::vector<Tensor> params{testing::parameter(testing::normal({1001}, 1)),
                                     testing::parameter(testing::normal({5, 7}, 2, at::kDouble)),
                                     testing::parameter(testing::normal({33}, 3).to(at::kBFloat16))};
    DiLoCoOptimizer optimizer(torch::optim::SGD(params, 0.1), comm, {.sync_every = 2});
    for (uint64_t t = 0; t < 6; ++t) {
      for (const auto& p : params) {
        p.mutable_grad() = testing::normal(p.sizes(), 10 * t + comm->rank(), at::kDouble).to(p.scalar_type());
      }
      optimizer.step();
    }
    End end{.params = {}, .anchors = optimizer.anchors()};
    for (const auto& p : params) end.params.push_back(p.detach());
    return end;
  });
  for (const End& end : ends) {
    EXPECT_TRUE(same_bits(end.params, ends[0].params));
    EXPECT_TRUE(same_bits(end.anchors, ends[0].anchors));
    EXPECT_TRUE(same_bits(end.params[0], end.anchors[0]));
    EXPECT_TRUE(same_bits(end.params[2], end.anchors[2].to(at::kBFloat16)));
  }
}

/// Round 1 commits; in round 2 rank 1's step is `bad`; round 3 commits again.
std::vector<Replica::Outcomes> with_bad_step(double bad, OnAbort on_abort) {
  return testing::run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.on_abort = on_abort}));
    replica.step(1.0);
    const Tensor anchor = replica.anchor();
    replica.step(comm->rank() == 1 ? bad : 0.5);
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    const bool kept = on_abort == OnAbort::keep_local;
    if (comm->rank() != 1 || !kept) {
      EXPECT_TRUE(torch::equal(replica.param, kept ? anchor - 0.5 : anchor));
    }
    if (comm->rank() == 1 && kept) {
      EXPECT_FALSE(replica.param.isfinite().any().item<bool>());
      replica.param.detach().copy_(anchor - 0.5);  // mend it
    }
    replica.step(0.25);
    EXPECT_TRUE(torch::equal(replica.param, anchor - (kept ? 0.75 : 0.25)));
    return replica.outcomes();
  });
}

TEST(Round, AbortsOnAllRanksWhenOneDeltaIsNotFinite) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const OnAbort on_abort : {OnAbort::rollback, OnAbort::keep_local}) {
      const auto all = with_bad_step(bad, on_abort);
      testing::expect_same_outcomes(all);
      const auto& reports = all[0].reports;
      ASSERT_EQ(reports.size(), 3u);
      EXPECT_EQ(reports[0].outcome, Outcome::committed);
      EXPECT_EQ(reports[1].outcome, Outcome::aborted);
      EXPECT_TRUE(says(reports[1].reason, "rank 1 has 3 non-finite"));
      EXPECT_EQ(reports[1].round, 1);
      EXPECT_EQ(reports[1].mean_delta_norm, 0);
      EXPECT_EQ(reports[2].outcome, Outcome::committed);
      EXPECT_EQ(reports[2].reason, "");
      EXPECT_EQ(reports[2].round, 2);
    }
  }
}

TEST(Round, KeepLocalLeavesTheParametersOfAnAbortedRoundAlone) {
  // An abort must not round parameters on their way through the anchor either.
  const Tensor start = testing::normal({100}, 1);
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm,
                    averaging({.on_abort = OnAbort::keep_local, .commit_if = [](const SyncReport&) { return false; }}),
                    start);
    replica.step(0.1 + comm->rank());
    EXPECT_TRUE(same_bits(replica.param, start - static_cast<float>(0.1 + comm->rank())));
  });
}

TEST(Round, SendsNothingWhenItAborts) {
  const auto group = testing::gloo_group(2);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<testing::Tapped>(comm);
    Replica replica(tapped, averaging());
    tapped->calls.clear();
    replica.step(comm->rank() == 0 ? std::nan("") : 1.0);
    for (const auto& call : tapped->calls) EXPECT_EQ(call.name, "all_gather");
    EXPECT_EQ(replica.reports.at(0).wire_bytes, 0);
  });
}

TEST(Round, CommitsOnlyIfEveryRankSaysYes) {
  const auto all = testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    int asked = 0;
    Replica replica(comm, averaging({.commit_if = [&asked, rank = comm->rank()](const SyncReport& report) {
                      EXPECT_EQ(report.mean_delta_norm, 0);  // not known before the reduction
                      EXPECT_NEAR(report.delta_norm, std::sqrt(3.0), 1e-6);
                      return ++asked != 1 || rank != 2;
                    }}));
    replica.step(1);
    EXPECT_TRUE(torch::equal(replica.param, torch::zeros({3})));
    replica.step(1);
    EXPECT_TRUE(torch::equal(replica.param, -torch::ones({3})));
    EXPECT_EQ(asked, 2);
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_EQ(all[0].reports.at(0).outcome, Outcome::aborted);
  EXPECT_TRUE(says(all[0].reports.at(0).reason, "rank 2"));
  EXPECT_EQ(all[0].reports.at(1).outcome, Outcome::committed);
}

/// Two rounds of one step each; `weights[rank]` in the first, 1 in the second. Rank r steps by 2^r.
std::vector<Replica::Outcomes> with_weights(const std::vector<double>& weights) {
  return testing::run_ranks(static_cast<int>(weights.size()), [&](std::shared_ptr<Communicator> comm) {
    int round = 0;
    Replica replica(comm, averaging({.weight = [&] { return round == 0 ? weights[comm->rank()] : 1.0; }}));
    for (; round < 2; ++round) replica.step(1 << comm->rank());
    return replica.outcomes();
  });
}

TEST(Round, WeighsReplicas) {
  const auto all = with_weights({1, 3});
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -(1 * 1 + 3 * 2) / 4.0 - 1.5)));
  EXPECT_EQ(all[0].reports[0].weight, 1);
  EXPECT_EQ(all[1].reports[0].weight, 3);
}

TEST(Round, OfAReplicaWithWeightZeroIsThatOfTheOthers) {
  const auto all = with_weights({1, 0});
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -1 - 1.5)));
  EXPECT_TRUE(same_bits(all[0].param, all[1].param));
}

TEST(Round, AbortsWhenAllWeightsAreZero) {
  const auto all = with_weights({0, 0});
  testing::expect_same_outcomes(all);
  EXPECT_EQ(all[0].reports[0].outcome, Outcome::aborted);
  EXPECT_TRUE(says(all[0].reports[0].reason, "weights of all ranks are 0"));
  EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -1.5)));
}

TEST(Round, AbortsWhenAWeightIsNegativeOrNotFiniteOrLostInFloat32) {
  for (const double bad : {-0.5, std::nan(""), HUGE_VAL, 1e-50, 1e300}) {
    const auto all = with_weights({1, bad});
    testing::expect_same_outcomes(all);
    EXPECT_EQ(all[0].reports[0].outcome, Outcome::aborted);
    EXPECT_TRUE(says(all[0].reports[0].reason, "rank 1 has weight"));
    EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -1.5))) << bad;
    EXPECT_EQ(all[0].reports[1].outcome, Outcome::committed);
  }
}

}  // namespace
}  // namespace outerloop
