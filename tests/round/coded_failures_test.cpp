#include <gtest/gtest.h>

#include <cstring>

#include "round/coded.hpp"

// Rounds by codec that do not commit, and replicas that do not fit.

namespace outerloop::testing::coded {
namespace {

/// A delta of NaN, or beyond float16, on one rank.
TEST(CodedRound, AbortsOnAllRanksWhenADeltaDoesNotFitTheWire) {
  for (const auto& [codec, bad] : {std::pair{codecs::int8(), double(NAN)}, std::pair{codecs::int8(), double(INFINITY)},
                                   std::pair{codecs::fp16(), 1e5}, std::pair{codecs::top_k(1, 8), double(NAN)}}) {
    const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      Replica replica(comm, averaging({.codec = codec, .error_feedback = ErrorFeedback{}}));
      replica.step(1);
      replica.step(comm->rank() == 1 ? bad : 1);
      replica.step(1);
      return replica.outcomes();
    });
    expect_same_outcomes(outcomes);
    ASSERT_EQ(outcomes[0].reports.size(), 3u);
    EXPECT_EQ(outcomes[0].reports[1].outcome, Outcome::aborted);
    EXPECT_TRUE(says(outcomes[0].reports[1].reason, "rank 1 has")) << codec->describe();
    EXPECT_EQ(outcomes[0].reports[2].outcome, Outcome::committed);
    EXPECT_NEAR(outcomes[0].anchor[0].item<double>(), -2, 0.02);
  }
}

TEST(CodedRound, AbortsOnAllRanksWhenTheMeanIsNotFinite) {
  const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({.codec = codecs::int8(), .weight = [] { return 1e15; }}));
    replica.step(3e30);
    replica.step(1);
    return replica.outcomes();
  });
  expect_same_outcomes(outcomes);
  EXPECT_EQ(outcomes[0].reports[0].reason, "rank 0 could not average the deltas");
  EXPECT_EQ(outcomes[0].reports[1].outcome, Outcome::committed);
}

/// Turns the scale that arrives from rank 0 into -1, once.
class Noisy final : public Communicator {
 public:
  explicit Noisy(std::shared_ptr<Communicator> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  Pending all_reduce_sum(Tensor flat) override { return group_->all_reduce_sum(flat); }
  Pending all_gather(Tensor rows, Tensor flat) override { return group_->all_gather(rows, flat); }
  Pending broadcast(Tensor flat, int root) override { return group_->broadcast(flat, root); }
  Pending all_to_all(Tensor out, Tensor in) override {
    group_->all_to_all(out, in).wait();
    const float scale = -1;
    if (std::exchange(armed, false)) std::memcpy(out.mutable_data_ptr<uint8_t>() + 256, &scale, sizeof(scale));
    return {};
  }
  bool armed = false;

 private:
  std::shared_ptr<Communicator> group_;
};

TEST(CodedRound, OfAWireThatWasDamagedOnItsWayAbortsOnAllRanks) {
  const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const auto noisy = std::make_shared<Noisy>(comm);
    Replica replica(noisy, averaging({.codec = codecs::int8()}), torch::zeros({512}));
    noisy->armed = comm->rank() == 1;
    if (comm->rank() == 1) {
      EXPECT_TRUE(says(message_of<c10::Error>([&] { replica.step(1); }),
                       "a damaged wire of rank 0: the scale of block 0 is -1"));
    } else {
      replica.step(1);
      EXPECT_EQ(replica.reports.back().reason, "rank 1 could not average the deltas");
    }
    replica.step(1);
    return replica.outcomes();
  });
  EXPECT_TRUE(same_bits(outcomes[0].anchor, outcomes[1].anchor));
  EXPECT_NEAR(outcomes[0].anchor[511].item<float>(), -1, 1e-5);
}

TEST(CodedRound, OfOtherCodecsOrFeedbackIsRefusedByAll) {
  const auto refused = [](const SyncOptions& first, const SyncOptions& second, const std::string& words) {
    run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      EXPECT_TRUE(says(
          message_of<ConsistencyError>([&] { Replica(comm, averaging(comm->rank() == 0 ? first : second)); }), words));
    });
  };
  refused({.codec = codecs::int8()}, {.codec = codecs::int8(128)},
          "codec int8(block 256), rank 1 has codec int8(block 128)");
  refused({.codec = codecs::int8()}, {.codec = codecs::int8(), .error_feedback = ErrorFeedback{}},
          "error feedback none, rank 1 has error feedback decay 1");
}

}  // namespace
}  // namespace outerloop::testing::coded
