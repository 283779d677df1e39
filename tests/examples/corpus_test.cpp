#include "../../examples/corpus.hpp"

#include <algorithm>
#include <set>

#include "program.hpp"

namespace outerloop::testing {

namespace {

constexpr size_t block = 4096;

/// Blocks of one repeated byte each, so that a block can be told by its content.
std::string numbered_blocks(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text.append(block, static_cast<char>(i));
  return text;
}
std::set<int> blocks_in(const std::string& text) {
  std::set<int> found;
  for (const char c : text) found.insert(static_cast<unsigned char>(c));
  return found;
}

}  // namespace

TEST(Corpus, DealsEveryBlockToOneShardOrToValidation) {
  const TempFolder folder;
  write(folder / "text", numbered_blocks(42));
  const Corpus corpus(folder / "text", 3);
  EXPECT_EQ(blocks_in(corpus.validation()), (std::set<int>{10, 30}));
  std::set<int> seen = blocks_in(corpus.validation());
  size_t bytes = corpus.validation().size();
  for (int rank = 0; rank < 3; ++rank) {
    for (const int i : blocks_in(corpus.shard(rank))) EXPECT_TRUE(seen.insert(i).second) << i << " is dealt twice";
    bytes += corpus.shard(rank).size();
  }
  EXPECT_EQ(seen.size(), 42u);
  EXPECT_EQ(bytes, 42 * block);
  EXPECT_EQ(blocks_in(corpus.shard(1)), (std::set<int>{1, 4, 7, 11, 14, 17, 20, 23, 26, 29, 33, 36, 39}));
}

TEST(Corpus, KeepsTheRestAfterTheLastWholeBlock) {
  const TempFolder folder;
  write(folder / "text", numbered_blocks(16) + "\xff\xff\xff");
  const Corpus corpus(folder / "text", 1);
  EXPECT_EQ(corpus.shard(0).size() + corpus.validation().size(), 16 * block + 3);
  EXPECT_TRUE(corpus.shard(0).ends_with("\xff\xff\xff"));
}

TEST(Corpus, ValidationWindowsStayInsideTheText) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  const Corpus corpus(folder / "text", 1);
  const auto starts = corpus.validation_starts(1024, 64);
  ASSERT_EQ(starts.size(), 1024u);
  EXPECT_EQ(starts[0], 0u);
  EXPECT_EQ(starts[2] - starts[1], starts[1]);
  EXPECT_LE(starts.back() + 65, corpus.validation().size());
}

TEST(Batches, TargetIsInputOneByteOn) {
  std::string text = words(1000);
  text[65] = '\xe9';  // a byte above 127 is a number in [128, 256)
  const auto [input, target] = windows_of(text, {0, 7, 935}, 64);
  EXPECT_EQ(input.sizes(), (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(input[1][0].item<int64_t>(), text[7]);
  EXPECT_EQ(target[1][57].item<int64_t>(), text[65] & 0xff);
  EXPECT_EQ(target[2][63].item<int64_t>(), text[999]);
  EXPECT_TRUE(target.narrow(1, 0, 63).equal(input.narrow(1, 1, 63)));
}

TEST(Batches, AreTheSameForTheSameSeedAndRankOnly) {
  const std::string text = words(5000);
  const auto third = [&](int64_t seed, int rank) {
    Batches batches(text, 8, 64, seed, rank);
    batches.next();
    batches.next();
    return batches.next().input;
  };
  EXPECT_TRUE(third(0, 0).equal(third(0, 0)));
  EXPECT_FALSE(third(0, 0).equal(third(0, 1)));
  EXPECT_FALSE(third(0, 0).equal(third(1, 0)));
}

}  // namespace outerloop::testing
