#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "round/coded.hpp"

// The stage by itself.

namespace outerloop::testing::coded {
namespace {

TEST(MeanAcross, ByACodecIsThatOfARound) {
  for (const CodecPtr& codec : deterministic_codecs()) {
    const auto means = run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      Tensor delta = moved(comm->rank(), 0);
      mean_across(*comm, *codec, delta).wait();
      return delta;
    });
    const Tensor expected = -defined({codec}, 3, 1);
    for (const Tensor& mean : means) EXPECT_TRUE(torch::equal(mean, expected)) << codec->describe();
  }
}

/// Draws that two ranks, or a wire and the mean, had in common would not average out.
TEST(MeanAcross, OfStochasticWiresHasDrawsOfItsOwnOnEachRank) {
  std::mutex mutex;
  std::set<uint64_t> keys;
  struct Listening final : Foreign {
    using Foreign::Foreign;
    void encode(const Tensor& delta, const Tensor& wire, uint64_t key) const override {
      heard(key);
      Foreign::encode(delta, wire, key);
    }
    std::function<void(uint64_t)> heard;
  };
  Listening codec(codecs::int8(256, Rounding::stochastic));
  codec.heard = [&](uint64_t key) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(keys.insert(key).second);
  };
  run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    for (const uint64_t key : {0, 1}) mean_across(*comm, codec, moved(0, 0), key).wait();
  });
  EXPECT_EQ(keys.size(), 2u * 3 * (3 + 1));  // three shards and a mean
}

TEST(MeanAcross, ByACodecThrowsOnAllRanksWhenOneIsNotFinite) {
  for (const CodecPtr& codec : {codecs::int8(), codecs::bf16(), codecs::top_k()}) {
    run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      Tensor delta = moved(comm->rank(), 0);
      if (comm->rank() == 1) delta[4000] = NAN;
      EXPECT_THROW(mean_across(*comm, *codec, delta).wait(), c10::Error) << codec->describe();
      Tensor next = torch::ones({numel});
      mean_across(*comm, *codec, next).wait();  // the group goes on
    });
  }
}

}  // namespace
}  // namespace outerloop::testing::coded
