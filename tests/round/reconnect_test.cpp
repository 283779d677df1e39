#include <gtest/gtest.h>

#include <chrono>

#include "round/replica.hpp"
#include "support/faults.hpp"

// After a CommError, a new group heals: the round that failed is held then, or the most advanced replica's taken over.

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::gradient;
using testing::message_of;
using testing::Replica;
using testing::same_bits;
using testing::says;
using testing::with_momentum;

/// Where ranks of `size` stand after round 2, which sync() ran at step 4, if nothing fails.
Replica::Outcomes undisturbed(int size) {
  return testing::run_ranks(size, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, with_momentum());
    for (int t = 0; t < 4; ++t) replica.step(gradient(comm->rank(), t));
    return replica.outcomes();
  })[0];
}

/// Rank 1's collective of this name fails in round 2. All ranks reconnect and hold the round then.
void heals_after(const std::string& collective) {
  const auto first = testing::gloo_group(3, 2s), second = testing::gloo_group(3);
  const auto all = testing::run_ranks(first, [&](std::shared_ptr<Communicator> comm) {
    bool armed = false;
    const auto tapped = std::make_shared<testing::Tapped>(comm, [&](const testing::Tapped::Call& call) {
      if (armed && call.name == collective) throw CommError("pulled the plug");
    });
    const int rank = comm->rank();
    Replica replica(rank == 1 ? std::shared_ptr<Communicator>(tapped) : comm, with_momentum());
    for (int t = 0; t < 3; ++t) replica.step(gradient(rank, t));
    const Tensor anchor = replica.anchor(), local = replica.param.detach().clone();
    armed = true;
    EXPECT_THROW(replica.step(gradient(rank, 3)), CommError);
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    EXPECT_EQ(replica.optimizer.rounds(), 1);
    EXPECT_TRUE(torch::equal(replica.param, local - gradient(rank, 3)));  // the inner step was taken
    replica.optimizer.reconnect(second[rank]);
    replica.optimizer.sync();
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_EQ(all[0].reports.back().round, 2);
  EXPECT_TRUE(same_bits(all[0].anchor, undisturbed(3).anchor));
}

TEST(Reconnect, HealsAFailureInTheExchangeOfHeaders) { heals_after("all_gather"); }
TEST(Reconnect, HealsAFailureInTheReduction) { heals_after("all_reduce_sum"); }

/// Its reductions succeed, but with `lost` this replica does not hear of it.
std::shared_ptr<Communicator> losing_replies(std::shared_ptr<Communicator> group, const bool& lost) {
  return std::make_shared<testing::Tapped>(std::move(group), nullptr, [&lost](const testing::Tapped::Call& call) {
    if (lost && call.name == "all_reduce_sum") throw CommError("the reply was lost");
  });
}

TEST(Reconnect, TakesTheStateOfTheMostAdvanced) {
  const auto second = testing::gloo_group(3);
  const auto all = testing::run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    bool lost = false;
    const int rank = comm->rank();
    Replica replica(losing_replies(comm, lost), with_momentum());
    for (int t = 0; t < 3; ++t) replica.step(gradient(rank, t));
    lost = rank == 0;  // the lowest rank, which would win a tie
    if (lost) {
      EXPECT_EQ(message_of<CommError>([&] { replica.step(gradient(rank, 3)); }), "the reply was lost");
    } else {
      replica.step(gradient(rank, 3));
    }
    EXPECT_EQ(replica.optimizer.rounds(), lost ? 1 : 2);
    replica.optimizer.reconnect(second[rank]);
    EXPECT_EQ(replica.optimizer.rounds(), 2);
    const Tensor anchor = replica.anchor();
    EXPECT_TRUE(same_bits(anchor, replica.param));
    for (int t = 4; t < 6; ++t) replica.step(gradient(rank, t));  // and the velocity has come along
    return std::make_tuple(anchor, replica.anchor(), replica.param.detach());
  });
  EXPECT_TRUE(same_bits(std::get<0>(all[0]), undisturbed(3).anchor));
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_TRUE(same_bits(std::get<0>(all[rank]), std::get<0>(all[0])));
    EXPECT_TRUE(same_bits(std::get<1>(all[rank]), std::get<1>(all[0])));
    EXPECT_TRUE(same_bits(std::get<2>(all[rank]), std::get<2>(all[0])));
  }
}

TEST(Reconnect, TakesTheCountsOfAllFragments) {
  const auto second = testing::gloo_group(2);
  const auto all = testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    bool lost = false;
    const int rank = comm->rank();
    DiLoCoOptions options = with_momentum();
    options.streaming.fragments = FragmentPlan::sequential(2);  // a round after every step
    Replica replica(losing_replies(comm, lost), options);
    for (int t = 0; t < 4; ++t) {
      lost = rank == 1 && t == 3;
      if (lost) {
        EXPECT_THROW(replica.step(gradient(rank, t)), CommError);
      } else {
        replica.step(gradient(rank, t));
      }
    }
    replica.optimizer.reconnect(second[rank]);
    EXPECT_EQ(replica.optimizer.rounds(), 4);
    lost = false;
    for (int t = 4; t < 8; ++t) replica.step(gradient(rank, t));
    EXPECT_EQ(replica.optimizer.rounds(), 8);
    return replica.anchor();
  });
  EXPECT_TRUE(same_bits(all[0], all[1]));
}

/// At the last of the broadcasts: counts of rounds, and anchor and velocity of each fragment.
void changes_nothing_half_way(const FragmentPlan& plan) {
  const auto second = testing::gloo_group(2, 2s), third = testing::gloo_group(2);
  const auto all = testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    bool lost = false;
    DiLoCoOptions options = with_momentum();
    options.streaming.fragments = plan;
    Replica replica(losing_replies(comm, lost), options);
    for (int t = 0; t < 3; ++t) replica.step(gradient(rank, t));
    lost = rank == 1;  // and lags behind
    if (lost) {
      EXPECT_THROW(replica.step(gradient(rank, 3)), CommError);
    } else {
      replica.step(gradient(rank, 3));
    }
    const Tensor anchor = replica.anchor(), local = replica.param.detach().clone();
    const int64_t rounds = replica.optimizer.rounds(), last = 1 + 2 * plan.count();
    int64_t broadcasts = 0;
    const auto tapped = std::make_shared<testing::Tapped>(second[rank], [&](const testing::Tapped::Call& call) {
      if (call.name == "broadcast" && ++broadcasts == last) throw CommError("pulled the plug");
    });
    EXPECT_THROW(replica.optimizer.reconnect(tapped), CommError);
    EXPECT_EQ(broadcasts, last);
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    EXPECT_TRUE(same_bits(replica.param.detach(), local));
    EXPECT_EQ(replica.optimizer.rounds(), rounds);
    lost = false;
    replica.optimizer.reconnect(third[rank]);
    for (int t = 4; t < 6; ++t) replica.step(gradient(rank, t));
    replica.optimizer.sync();
    return replica.outcomes();
  });
  EXPECT_TRUE(same_bits(all[0].anchor, all[1].anchor));
  EXPECT_TRUE(same_bits(all[0].param, all[1].param));
}

TEST(Reconnect, ThatFailsHalfWayChangesNothing) {
  changes_nothing_half_way(FragmentPlan::whole());
  changes_nothing_half_way(FragmentPlan::sequential(2));
}

TEST(Reconnect, HappensInStepWithTheGroupOfOnCommError) {
  const auto first = testing::gloo_group(2, 2s), second = testing::gloo_group(2);
  const auto all = testing::run_ranks(first, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    int calls = 0;
    bool armed = false;
    const auto tapped = std::make_shared<testing::Tapped>(comm, [&](const testing::Tapped::Call&) {
      if (armed && rank == 0) throw CommError("pulled the plug");
    });
    Replica replica(tapped, with_momentum({.on_comm_error = [&] {
                      ++calls;
                      return second[rank];
                    }}));
    replica.step(1);
    armed = true;
    EXPECT_NO_THROW(replica.step(1));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(replica.optimizer.rounds(), 0);
    EXPECT_TRUE(torch::equal(replica.param, torch::full({3}, -2)));  // that round is lost, the steps are not
    replica.step(1);
    replica.step(1);
    EXPECT_EQ(calls, 1);
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_EQ(all[0].reports.size(), 1u);
  EXPECT_TRUE(torch::equal(all[0].anchor, torch::full({3}, -4 * 0.5 * 1.5)));  // the round's delta is of four steps
}

/// Rank 1 is a process that was started anew: it constructs its optimizer alone, from other parameters, and joins.
std::vector<Replica::Outcomes> newcomer_joins(int steps_before) {
  return testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const bool newcomer = comm->rank() == 1;
    Replica replica(connect_alone(), with_momentum(), torch::full({3}, newcomer ? 64.0 : 0.0));
    for (int t = 0; !newcomer && t < steps_before; ++t) replica.step(1);
    const Tensor before = replica.param.detach().clone();
    replica.optimizer.reconnect(comm);
    EXPECT_EQ(replica.optimizer.local_steps(), steps_before);
    EXPECT_EQ(replica.optimizer.rounds(), steps_before / 2);
    EXPECT_TRUE(torch::equal(replica.param, newcomer ? replica.anchor() : before));
    for (int t = steps_before; t < 6; ++t) replica.step(1);
    return replica.outcomes();
  });
}

TEST(Reconnect, LetsANewcomerJoin) {
  const auto all = newcomer_joins(4);
  EXPECT_TRUE(same_bits(all[0].anchor, all[1].anchor));
  EXPECT_TRUE(same_bits(all[0].param, all[1].param));
  ASSERT_EQ(all[1].reports.size(), 1u);
  EXPECT_EQ(all[1].reports[0].reason, "");  // no repair was needed
}

TEST(Reconnect, LetsANewcomerJoinBeforeTheFirstRound) {
  const auto all = newcomer_joins(1);
  EXPECT_TRUE(same_bits(all[0].anchor, all[1].anchor));
  EXPECT_GT(all[1].anchor.min().item<float>(), -16);  // nothing of the newcomer's 64 has come in
  EXPECT_LT(all[1].anchor.max().item<float>(), 0);
}

TEST(Reconnect, WithOtherOptionsIsAnErrorOnAllRanks) {
  // The group of two joins optimizers that were constructed alone, with different options.
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Replica replica(connect_alone(), testing::averaging({}, comm->rank() == 0 ? 2 : 3));
    replica.step(1);
    const std::string message = message_of<ConsistencyError>([&] { replica.optimizer.reconnect(comm); });
    EXPECT_TRUE(says(message, "rank 0 has sync_every 2, rank 1 has sync_every 3"));
    replica.step(1);
    replica.step(1);
    EXPECT_EQ(replica.optimizer.rounds(), 1);  // still in its own group
  });
}

}  // namespace
}  // namespace outerloop
