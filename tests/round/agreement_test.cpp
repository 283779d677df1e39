#include <gtest/gtest.h>

#include <sstream>

#include "round/replica.hpp"

// Replicas that have come apart: in their anchors, in their progress, in their parameters.

namespace outerloop {
namespace {

using testing::averaging;
using testing::message_of;
using testing::Replica;
using testing::same_bits;
using testing::says;

/// Start::trust lets every rank begin with its own anchor. Each steps by 1 before the first round, by 0.5 before the
/// second.
std::vector<Replica::Outcomes> repaired(const std::vector<double>& starts) {
  return testing::run_ranks(static_cast<int>(starts.size()), [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.start = Start::trust}), torch::full({3}, starts[comm->rank()]));
    replica.step(1);
    EXPECT_TRUE(same_bits(replica.param, replica.anchor()));
    replica.step(0.5);
    return replica.outcomes();
  });
}

TEST(Anchors, ThatDifferAreRepairedFromTheMajority) {
  const auto all = repaired({4, 8, 8});
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(says(all[0].reports[0].reason, "the anchor of rank 0 differs from that of rank 1"));
  // The round then goes on from 8: the deltas are 8 - 3, 8 - 7 and 8 - 7.
  EXPECT_TRUE(torch::allclose(all[0].anchor, torch::full({3}, 8 - 7 / 3.0 - 0.5), 0, 1e-6));
  EXPECT_EQ(all[0].reports[1].reason, "");
  EXPECT_EQ(all[0].reports[1].round, 2);
}

TEST(Anchors, ThatDifferAreRepairedFromTheLowestRankOnATie) {
  const auto all = repaired({4, 8});
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(says(all[0].reports[0].reason, "the anchor of rank 1 differs from that of rank 0"));
  EXPECT_TRUE(torch::equal(all[1].anchor, torch::full({3}, 4 - (1 - 3) / 2.0 - 0.5)));  // deltas 4 - 3 and 4 - 7
}

TEST(Anchors, ThatDifferByOneBitAreNoticed) {
  const float one_up = std::nextafter(1.0f, 2.0f);
  const auto all = testing::run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    Tensor start = torch::ones({1000});
    if (comm->rank() == 2) start[777] = one_up;
    Replica replica(comm, averaging({.start = Start::trust}), start);
    replica.step(0.5);
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(says(all[0].reports[0].reason, "the anchor of rank 2 differs"));
}

TEST(Anchors, ThatDifferAreAnErrorOnAllRanksIfAsked) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.start = Start::trust, .on_mismatch = OnMismatch::fail}),
                    torch::full({3}, comm->rank() == 1 ? 4.0 : 8.0));
    const Tensor anchor = replica.anchor();
    EXPECT_TRUE(says(message_of<ConsistencyError>([&] { replica.step(1); }), "the anchor of rank 1 differs"));
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    EXPECT_EQ(replica.optimizer.rounds(), 0);
    EXPECT_EQ(replica.reports.size(), 0u);
  });
}

TEST(Anchors, OfAnotherCheckpointAreRepaired) {
  const auto archive_after = [](double step) {
    Replica other(connect_alone(), averaging());
    other.step(step);
    std::ostringstream stream;
    torch::save(other.optimizer, stream);
    return stream.str();
  };
  const auto all = testing::run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging());
    std::istringstream archive(archive_after(comm->rank() == 2 ? 16 : 2));
    torch::load(replica.optimizer, archive);
    replica.param.detach().fill_(-2);
    replica.step(1);
    return replica.outcomes();
  });
  testing::expect_same_outcomes(all);
  EXPECT_TRUE(says(all[0].reports[0].reason, "the anchor of rank 2 differs"));
  EXPECT_TRUE(torch::equal(all[2].anchor, torch::full({3}, -3)));
  EXPECT_TRUE(torch::equal(all[2].param, all[2].anchor));
}

TEST(Replicas, AtDifferentStepsGetAnErrorAndCanMeetAgain) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 4));
    replica.step(1);
    if (comm->rank() != 1) replica.step(1);
    const std::string message = message_of<ConsistencyError>([&] { replica.optimizer.sync(); });
    EXPECT_TRUE(says(message, "rank 0 is in a round at inner step 2"));
    EXPECT_TRUE(says(message, "rank 1 is in a round at inner step 1"));
    EXPECT_TRUE(torch::equal(replica.anchor(), torch::zeros({3})));
    if (comm->rank() == 1) replica.step(1);
    replica.optimizer.sync();
    EXPECT_TRUE(torch::equal(replica.anchor(), torch::full({3}, -2)));
  });
}

TEST(Replicas, AfterDifferentNumbersOfRoundsGetAnErrorOnAllRanks) {
  std::ostringstream archive;  // at step 1 after one round
  Replica ahead(connect_alone(), averaging({}, 2));
  ahead.step(1);
  ahead.optimizer.sync();
  torch::save(ahead.optimizer, archive);
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 2));
    if (comm->rank() == 0) replica.step(1);
    std::istringstream stream(archive.str());
    if (comm->rank() == 1) torch::load(replica.optimizer, stream);
    const std::string message = message_of<ConsistencyError>([&] { replica.optimizer.sync(); });
    EXPECT_TRUE(says(message, "rank 0 is in a round at inner step 1 after 0 rounds"));
    EXPECT_TRUE(says(message, "rank 1 is in a round at inner step 1 after 1 rounds"));
    EXPECT_EQ(replica.optimizer.rounds(), comm->rank());
  });
}

TEST(Replicas, WithAnotherParameterGroupGetAnErrorOnAllRanks) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 2));
    replica.step(1);
    if (comm->rank() == 2) replica.optimizer.add_param_group({{testing::parameter(torch::zeros({5}))}});
    EXPECT_TRUE(says(message_of<ConsistencyError>([&] { replica.step(1); }), "rank 2 is agreeing on parameters"));
    EXPECT_TRUE(torch::equal(replica.anchor(), torch::zeros({3})));
  });
}

TEST(Replicas, WithDifferentParameterGroupsGetAnErrorOnAllRanks) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 2));
    replica.step(1);
    replica.optimizer.add_param_group({{testing::parameter(torch::zeros({comm->rank() == 2 ? 5 : 4}))}});
    const std::string message = message_of<ConsistencyError>([&] { replica.step(1); });
    EXPECT_TRUE(says(message, "[4]"));
    EXPECT_TRUE(says(message, "rank 2 has parameter 1: Float [5]"));
  });
}

TEST(Replicas, HearWhyOneOfThemRefusesItsNewGroup) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 2));
    replica.step(1);
    const bool refuses = comm->rank() == 1;
    replica.optimizer.add_param_group({{torch::zeros({5}, refuses ? at::kLong : at::kFloat)}});
    if (refuses) {
      EXPECT_THROW(replica.step(1), c10::Error);
    } else {
      EXPECT_TRUE(says(message_of<ConsistencyError>([&] { replica.step(1); }), "rank 1 failed: "));
    }
    EXPECT_TRUE(torch::equal(replica.anchor(), torch::zeros({3})));
  });
}

}  // namespace
}  // namespace outerloop
