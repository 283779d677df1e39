#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include <numeric>
#include <random>
#include <set>

#include "round/replica.hpp"

/// Eager updates: own newest delta, the others' from before.

namespace outerloop::testing {
namespace {

struct EagerRun {
  int replicas;
  int64_t sync_every, rounds_late;
  double outer_lr, momentum, keep_local = 0;
  std::vector<double> weights = {};
  std::set<int64_t> refused = {};  ///< rounds to which rank 0's commit_if says no
  int64_t delay() const { return rounds_late * sync_every; }
  double weight(int rank) const { return weights.empty() ? 1 : weights[rank]; }
};

constexpr double eager_lr = 0.1;

Tensor beginning() { return eighths({5}, 1, at::kDouble); }
Tensor drawn_to(int rank, int64_t step) { return eighths({5}, 100 * step + rank, at::kDouble); }

/// All replicas, from the definition; a round of a fragment that is sent after steps first, first + sync_every, ...
class Definition {
 public:
  Definition(const EagerRun& run, int64_t first) : run_(run), first_(first), replicas_(run.replicas) {}
  void step(int64_t step) {
    for (int rank = 0; rank < run_.replicas; ++rank) {
      replicas_[rank].local = replicas_[rank].local - eager_lr * (replicas_[rank].local - drawn_to(rank, step));
    }
    if (step >= first_ && (step - first_) % run_.sync_every == 0) round();
  }
  struct State {
    Tensor local = beginning(), anchor = beginning(), velocity = torch::zeros_like(anchor);
    std::vector<Tensor> shares = {};  ///< of each round, what was counted at its send
  };
  const State& operator[](int rank) const { return replicas_[rank]; }

 private:
  void round() {
    const auto now = static_cast<int64_t>(means_.size()), before = now - run_.rounds_late;
    const bool commits = !run_.refused.contains(now);
    Tensor sum = torch::zeros_like(beginning());
    double total = 0;
    for (int rank = 0; rank < run_.replicas; ++rank) {
      State& state = replicas_[rank];
      const Tensor delta = state.anchor - state.local;
      state.shares.push_back(commits || rank != 0 ? delta / run_.replicas : torch::zeros_like(delta));
      sum = sum + run_.weight(rank) * delta;
      total += run_.weight(rank);
    }
    means_.push_back(commits ? sum / total : torch::zeros_like(sum));
    for (int rank = 0; rank < run_.replicas; ++rank) {
      State& state = replicas_[rank];
      if (before < 0 && !commits && rank == 0) {  // nothing to apply
        state.local = state.anchor;
        continue;
      }
      Tensor mean_delta = state.shares[now];
      if (before >= 0) mean_delta = mean_delta - state.shares[before] + means_[before];
      state.velocity = run_.momentum * state.velocity + mean_delta;
      state.anchor = state.anchor - run_.outer_lr * (mean_delta + run_.momentum * state.velocity);
      state.local = state.anchor + run_.keep_local * (state.local - state.anchor);
    }
  }

  EagerRun run_;
  int64_t first_;
  std::vector<State> replicas_;
  std::vector<Tensor> means_;  ///< of each round
};

DiLoCoOptions eager_options(const EagerRun& run, int64_t fragments, int rank) {
  std::vector<std::vector<int64_t>> each(fragments);
  for (int64_t f = 0; f < fragments; ++f) each[f] = {f};
  DiLoCoOptions options{.sync_every = run.sync_every, .outer_lr = run.outer_lr, .outer_momentum = run.momentum};
  options.streaming = {FragmentPlan::listed(each), run.delay(), run.keep_local, true};
  options.sync.weight = [weight = run.weight(rank)] { return weight; };
  options.sync.commit_if = [refused = rank == 0 ? run.refused : std::set<int64_t>{}, sent = int64_t{0},
                            fragments](const SyncReport&) mutable { return !refused.contains(sent++ / fragments); };
  return options;
}

/// Rounds that abort are counted by the order in which they are sent.
void follow_definition(const EagerRun& run, int64_t fragments) {
  run_ranks(run.replicas, [&](std::shared_ptr<Communicator> comm) {
    std::vector<Definition> references;
    std::vector<Tensor> params;
    for (int64_t f = 0; f < fragments; ++f) {
      references.emplace_back(run, (run.sync_every * (f + 1) + fragments - 1) / fragments);
      params.push_back(parameter(beginning()));
    }
    DiLoCoOptimizer optimizer(torch::optim::SGD(params, eager_lr), comm, eager_options(run, fragments, comm->rank()));
    for (int64_t step = 1; step <= 40; ++step) {
      for (Tensor& param : params) param.mutable_grad() = param.detach() - drawn_to(comm->rank(), step);
      optimizer.step();
      const std::vector<Tensor> anchors = optimizer.anchors();
      for (int64_t f = 0; f < fragments; ++f) {
        references[f].step(step);
        const Definition::State& expected = references[f][comm->rank()];
        ASSERT_LT((params[f].detach() - expected.local).abs().max().item<double>(), 1e-12) << step << ", " << f;
        ASSERT_LT((anchors[f] - expected.anchor).abs().max().item<double>(), 1e-12) << step << ", " << f;
      }
    }
  });
}

TEST(Eager, FollowsItsDefinition) {
  follow_definition({.replicas = 2, .sync_every = 3, .rounds_late = 1, .outer_lr = 0.5, .momentum = 0.6}, 1);
  follow_definition(
      {.replicas = 3, .sync_every = 4, .rounds_late = 2, .outer_lr = 0.3, .momentum = 0.5, .keep_local = 0.25}, 1);
  follow_definition({.replicas = 2, .sync_every = 5, .rounds_late = 1, .outer_lr = 0.5, .momentum = 0.0}, 3);
}

TEST(Eager, CorrectsItsShareWhenItHearsWhatAllWeigh) {
  follow_definition({2, 3, 1, 0.5, 0.6, 0, {3, 1}}, 1);
  follow_definition({2, 3, 2, 0.5, 0.6, 0, {0.5, 8}}, 2);
}

TEST(Eager, TakesBackItsShareOfARoundThatAborts) {
  follow_definition({2, 3, 1, 0.5, 0.6, 0.5, {}, {0, 3}}, 1);
  follow_definition({2, 4, 2, 0.5, 0.6, 0, {}, {2, 3}}, 2);
}

TEST(Eager, ReplicaAloneIsDiLoCoWithoutDelay) {
  const auto path = [](Streaming streaming) {
    const auto comm = connect_alone();
    Replica replica(comm, {.sync_every = 2, .outer_lr = 0.5, .outer_momentum = 0.9, .streaming = streaming});
    std::vector<Tensor> path;
    for (int step = 0; step < 20; ++step) {
      replica.step(0.1 * step);
      path.push_back(replica.param.detach().clone());
    }
    return path;
  };
  const std::vector<Tensor> eager = path({.delay = 4, .eager = true}), plain = path({});
  for (size_t t = 0; t < plain.size(); ++t) EXPECT_LE(ulps(eager[t], plain[t]), 4) << t;
}

/// Multiples of 1/8 through means of two, which float32 holds.
DiLoCoOptions exactly(int64_t rounds_late) {
  DiLoCoOptions options = averaging({}, 2);
  options.streaming = {.delay = 2 * rounds_late, .eager = true};
  return options;
}

TEST(Eager, CountsEveryDeltaOnceOnEveryReplica) {
  const auto anchors = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, exactly(3));
    for (int step = 0; step < 12; ++step) replica.step((comm->rank() + 1) * 0.25 + step);
    EXPECT_FALSE(replica.optimizer.idle());
    replica.optimizer.drain();
    EXPECT_TRUE(replica.optimizer.idle());
    EXPECT_EQ(replica.optimizer.rounds(), 6);
    return replica.anchor();
  });
  EXPECT_TRUE(same_bits(anchors[0], anchors[1]));
  EXPECT_TRUE(same_bits(anchors[0], torch::full({3}, -(12 * 0.375F + 66))));
}

TEST(Eager, AnchorsAreOneAgainAfterSync) {
  const auto states = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = with_momentum();
    options.streaming = {.delay = 2, .eager = true};
    Replica replica(comm, options);
    for (int step = 0; step < 7; ++step) replica.step(gradient(comm->rank(), step));
    const Tensor before = replica.anchor();
    replica.optimizer.sync();
    for (int step = 0; step < 2; ++step) replica.step(1);  // alike: velocities that differ would show
    return std::vector<Tensor>{before, replica.anchor(), replica.param};
  });
  EXPECT_FALSE(same_bits(states[0][0], states[1][0]));
  EXPECT_TRUE(same_bits(states[0][1], states[1][1]));
  EXPECT_TRUE(same_bits(states[0][2], states[1][2]));
}

TEST(Eager, ReplicaWithANaNIsBackAtItsAnchorAtOnce) {
  const auto anchors = run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, exactly(1));
    replica.step(1);
    replica.step(comm->rank() == 0 ? 1 : NAN);
    EXPECT_TRUE(same_bits(replica.param, torch::full({3}, comm->rank() == 0 ? -1.0F : 0.0F)));
    for (int step = 0; step < 2; ++step) replica.step(1);
    EXPECT_EQ(replica.reports.back().outcome, Outcome::aborted);
    EXPECT_TRUE(says(replica.reports.back().reason, "rank 1 has 3 non-finite elements"));
    replica.optimizer.drain();
    return replica.anchor();
  });
  EXPECT_TRUE(same_bits(anchors[0], torch::full({3}, -2.0F)));
  EXPECT_TRUE(same_bits(anchors[1], torch::full({3}, -2.0F)));
}

TEST(Eager, ShareOfAWeightThatAllRefuseIsNotApplied) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options = exactly(1);
    options.sync.weight = [rank = comm->rank(), asked = 0]() mutable { return rank == 0 && asked++ == 1 ? 1e-42 : 1; };
    Replica replica(comm, options);
    for (int step = 0; step < 4; ++step) {
      replica.step(1);
      EXPECT_TRUE(replica.anchor().isfinite().all().item<bool>()) << "after step " << step;
    }
    replica.optimizer.sync();
    EXPECT_TRUE(says(replica.reports.at(1).reason, "rank 0 has weight"));
    EXPECT_EQ(replica.reports.back().outcome, Outcome::committed);
  });
}

TEST(Eager, ReplicasTakeOneAnchorWhenTheyReconnect) {
  const auto first = gloo_group(2), second = gloo_group(2);
  const auto anchors = run_ranks(first, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, exactly(1));
    for (int step = 0; step < 4; ++step) replica.step(comm->rank() + step);
    replica.optimizer.reconnect(second[comm->rank()]);
    EXPECT_TRUE(replica.optimizer.idle());
    return replica.anchor();
  });
  EXPECT_TRUE(same_bits(anchors[0], anchors[1]));
}

}  // namespace
}  // namespace outerloop::testing
