#include <gtest/gtest.h>

#include "round/coded.hpp"

// Codecs that users write.

namespace outerloop::testing::coded {
namespace {

/// Halves of float32: what a user may write.
class Upper final : public Codec {
 public:
  explicit Upper(Reduction reduction, std::function<void()> before_encode = nullptr,
                 std::function<void()> before_decode = nullptr)
      : reduction_(reduction), before_encode_(before_encode), before_decode_(before_decode) {}
  std::string describe() const override { return "upper"; }
  Reduction reduction() const override { return reduction_; }
  int64_t wire_bytes(int64_t n) const override { return 2 * n; }
  void encode(const Tensor& delta, const Tensor& wire, uint64_t) const override {
    if (before_encode_) before_encode_();
    wire.view({-1, 2}).copy_(delta.view(at::kByte).view({-1, 4}).narrow(1, 2, 2));
  }
  void decode(const Tensor& wire, const Tensor& delta) const override {
    if (before_decode_) before_decode_();
    Tensor bytes = delta.view(at::kByte).view({-1, 4});
    bytes.zero_();
    bytes.narrow(1, 2, 2).copy_(wire.view({-1, 2}));
  }

 private:
  Reduction reduction_;
  std::function<void()> before_encode_, before_decode_;
};

TEST(OwnCodec, TakesTheSameRounds) {
  for (const Reduction reduction : {Reduction::shards, Reduction::gather}) {
    const Setting setting{std::make_shared<Upper>(reduction), ErrorFeedback{}};
    for (const int ranks : {1, 2, 3}) {
      const Tensor expected = defined(setting, ranks, 3);
      for (const Tensor& anchor : held(setting, group_of(ranks), 3)) EXPECT_TRUE(same_bits(anchor, expected));
    }
  }
}

TEST(OwnCodec, ThatThrowsOnOneRankAbortsItsRoundOnAll) {
  for (const Reduction reduction : {Reduction::shards, Reduction::gather}) {
    for (const bool at_encode : {true, false}) {
      const auto outcomes = run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        bool armed = false;
        const auto fail = [&] {
          if (armed && comm->rank() == 1) throw std::domain_error("the codec's own words");
        };
        const auto codec =
            at_encode ? std::make_shared<Upper>(reduction, fail) : std::make_shared<Upper>(reduction, nullptr, fail);
        Replica replica(comm, averaging({.codec = codec}));
        replica.step(1);
        armed = true;
        if (comm->rank() == 1) {
          EXPECT_TRUE(says(message_of<std::domain_error>([&] { replica.step(1); }), "own words"));
        } else {
          replica.step(1);
          EXPECT_EQ(replica.reports.back().outcome, Outcome::aborted);
          EXPECT_TRUE(says(replica.reports.back().reason, "rank 1"));
        }
        armed = false;
        replica.step(1);
        EXPECT_EQ(replica.reports.back().outcome, Outcome::committed);
        return replica.outcomes();
      });
      EXPECT_TRUE(same_bits(outcomes[0].anchor, outcomes[1].anchor));
      EXPECT_EQ(outcomes[0].anchor[0].item<float>(), -2);
    }
  }
}

}  // namespace
}  // namespace outerloop::testing::coded
