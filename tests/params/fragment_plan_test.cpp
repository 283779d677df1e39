#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <outerloop/fragments.hpp>
#include <random>

/// Every element is in exactly one fragment, and fragments are about as large as each other.

namespace outerloop {
namespace {

using Sizes = std::vector<FragmentPlan::Size>;
using Cut = std::vector<std::vector<Slice>>;

Sizes floats(const std::vector<int64_t>& elements) {
  Sizes sizes;
  for (const int64_t count : elements) sizes.push_back({count, 4});
  return sizes;
}

/// "0:[0,3) 1:[0,2)" for each fragment.
std::vector<std::string> text(const Cut& cut) {
  std::vector<std::string> lines;
  for (const auto& fragment : cut) {
    std::string& line = lines.emplace_back();
    for (const auto& [parameter, begin, end] : fragment) {
      line += (line.empty() ? "" : " ") + std::to_string(parameter) + ":[" + std::to_string(begin) + "," +
              std::to_string(end) + ")";
    }
  }
  return lines;
}
using Lines = std::vector<std::string>;

int64_t bytes(const std::vector<Slice>& fragment, const Sizes& sizes) {
  int64_t sum = 0;
  for (const auto& [parameter, begin, end] : fragment) sum += (end - begin) * sizes[parameter].bytes_per_element;
  return sum;
}

void expect_each_element_once(const Cut& cut, const Sizes& sizes) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> of(sizes.size());
  for (const auto& fragment : cut) {
    ASSERT_FALSE(fragment.empty());
    for (const auto& [parameter, begin, end] : fragment) {
      ASSERT_LT(begin, end);
      of[parameter].emplace_back(begin, end);
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::sort(of[i].begin(), of[i].end());
    int64_t at = 0;
    for (const auto& [begin, end] : of[i]) {
      ASSERT_EQ(begin, at) << "parameter " << i;
      at = end;
    }
    ASSERT_EQ(at, sizes[i].frozen ? 0 : sizes[i].elements) << "parameter " << i;
  }
}

std::string refusal(const FragmentPlan& plan, const Sizes& sizes) {
  try {
    plan.cut(sizes);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(FragmentPlan, WholeIsOneFragmentOfAll) {
  EXPECT_EQ(text(FragmentPlan::whole().cut(floats({3, 0, 2}))), (Lines{"0:[0,3) 2:[0,2)"}));
  EXPECT_EQ(text(FragmentPlan::whole().cut(floats({0}))), (Lines{""}));
}

TEST(FragmentPlan, SequentialEndsBetweenParameters) {
  EXPECT_EQ(text(FragmentPlan::sequential(2).cut(floats({3, 4, 3}))), (Lines{"0:[0,3)", "1:[0,4) 2:[0,3)"}));
  EXPECT_EQ(text(FragmentPlan::sequential(2).cut(floats({4, 3, 3}))), (Lines{"0:[0,4)", "1:[0,3) 2:[0,3)"}));
  EXPECT_EQ(text(FragmentPlan::sequential(3).cut(floats({2, 2, 2}))), (Lines{"0:[0,2)", "1:[0,2)", "2:[0,2)"}));
}

TEST(FragmentPlan, CutsAParameterLargerThanAShare) {
  EXPECT_EQ(text(FragmentPlan::sequential(4).cut(floats({100}))),
            (Lines{"0:[0,25)", "0:[25,50)", "0:[50,75)", "0:[75,100)"}));
  EXPECT_EQ(text(FragmentPlan::sequential(2).cut(floats({10, 1, 1}))), (Lines{"0:[0,6)", "0:[6,10) 1:[0,1) 2:[0,1)"}));
}

TEST(FragmentPlan, WeighsElementsByTheirBytes) {
  EXPECT_EQ(text(FragmentPlan::sequential(2).cut({{6, 8}, {12, 4}})), (Lines{"0:[0,6)", "1:[0,12)"}));
}

TEST(FragmentPlan, StridedDealsStretchesOutInTurn) {
  EXPECT_EQ(text(FragmentPlan::strided(2).cut(floats({5, 5, 5, 5, 5}))),
            (Lines{"0:[0,5) 2:[0,5) 3:[0,5)", "1:[0,5) 4:[0,5)"}));
}

TEST(FragmentPlan, LeavesFrozenParametersOut) {
  const Sizes sizes{{4, 4}, {100, 4, /*frozen=*/true}, {4, 4}};
  EXPECT_EQ(text(FragmentPlan::sequential(2).cut(sizes)), (Lines{"0:[0,4)", "2:[0,4)"}));
  EXPECT_EQ(text(FragmentPlan::listed({{0}, {2}}).cut(sizes)), (Lines{"0:[0,4)", "2:[0,4)"}));
  EXPECT_EQ(text(FragmentPlan::listed({{0, 1}, {2}}).cut(sizes)), (Lines{"0:[0,4)", "2:[0,4)"}));
}

TEST(FragmentPlan, HasEveryElementOnceInFragmentsOfSimilarSizeWhateverTheParameters) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    Sizes sizes(random() % 12 + 1);
    int64_t elements = 0, total = 0, widest = 0;
    for (auto& size : sizes) {
      size = {static_cast<int64_t>(random() % 3 ? random() % 20 : random() % 400), random() % 4 ? 4 : 8,
              random() % 5 == 0};
      if (size.frozen) continue;
      elements += size.elements;
      total += size.elements * size.bytes_per_element;
      widest = std::max(widest, size.bytes_per_element);
    }
    const int64_t n = random() % 8 + 1;
    if (n > elements) continue;
    for (const FragmentPlan& plan : {FragmentPlan::sequential(n), FragmentPlan::strided(n)}) {
      const Cut cut = plan.cut(sizes);
      ASSERT_EQ(static_cast<int64_t>(cut.size()), n);
      expect_each_element_once(cut, sizes);
      // A border moves by half a share at most, and to a whole element.
      for (const auto& fragment : cut) ASSERT_LE(bytes(fragment, sizes), 2 * total / n + 2 * widest * n) << trial;
    }
  }
}

TEST(FragmentPlan, OfAModelIsBalanced) {
  // 24 blocks of 12 parameters each, between an embedding and a head.
  std::vector<int64_t> elements{50257 * 64};
  for (int block = 0; block < 24; ++block) {
    for (const int64_t size : {64, 64, 64 * 192, 192, 64 * 64, 64, 64, 64, 64 * 256, 256, 256 * 64, 64}) {
      elements.push_back(size);
    }
  }
  elements.push_back(64);
  const Sizes sizes = floats(elements);
  const double share = 4.0 * std::accumulate(elements.begin(), elements.end(), int64_t{0}) / 8;
  for (const FragmentPlan& plan : {FragmentPlan::sequential(8), FragmentPlan::strided(8)}) {
    for (const auto& fragment : plan.cut(sizes)) EXPECT_NEAR(bytes(fragment, sizes) / share, 1, 0.05);
  }
}

TEST(FragmentPlan, NamesWhatDoesNotFit) {
  const auto says = [](const std::string& message, const std::string& words) {
    return message.find(words) != std::string::npos ? ::testing::AssertionSuccess()
                                                    : ::testing::AssertionFailure() << message;
  };
  EXPECT_TRUE(says(refusal(FragmentPlan::sequential(4), floats({2, 1})), "fragments is 4, but there are 3 elements"));
  EXPECT_TRUE(says(refusal(FragmentPlan::listed({{0}}), floats({2, 1})), "parameter 1 is in no fragment"));
  EXPECT_TRUE(
      says(refusal(FragmentPlan::listed({{0}, {1, 0}}), floats({2, 1})), "parameter 0 is in fragment 0 and again in"));
  EXPECT_TRUE(says(refusal(FragmentPlan::listed({{0}, {1, 7}}), floats({2, 1})), "fragment 1 has parameter 7"));
  EXPECT_TRUE(says(refusal(FragmentPlan::listed({{0, 1}, {-1}}), floats({2, 1})), "fragment 1 has parameter -1"));
  EXPECT_TRUE(says(refusal(FragmentPlan::listed({{0, 1}, {}}), floats({2, 1})), "fragment 1 has no element"));
  EXPECT_TRUE(says(refusal(FragmentPlan::listed({{0}, {1}}), {{2, 4}, {1, 4, true}}), "fragment 1 has no element"));
  EXPECT_THROW(FragmentPlan::sequential(0), c10::Error);
  EXPECT_THROW(FragmentPlan::strided(-1), c10::Error);
  EXPECT_THROW(FragmentPlan::listed({}), c10::Error);
}

TEST(FragmentPlan, IsDescribedSoThatReplicasCanCompareIt) {
  EXPECT_EQ(FragmentPlan::whole().describe(), "sequential 1");
  EXPECT_EQ(FragmentPlan::strided(3).describe(), "strided 3");
  EXPECT_EQ(FragmentPlan::listed({{0, 2}, {1}}).describe(), "listed {0 2} {1}");
}

}  // namespace
}  // namespace outerloop
