#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <outerloop/math.hpp>
#include <outerloop/stages.hpp>

#include <limits>

#include "kernels/cases.hpp"
#include "kernels/cpu.hpp"
#include "params/flat_params.hpp"

namespace outerloop {
namespace {

using testing::block;
using testing::same_bits;

constexpr int64_t numel = block + 77;
constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

/// Multiples of 1/8, small enough that sums of squares are exact in any order.
Tensor exact(int64_t n, at::ScalarType type) { return (at::arange(n, at::kLong) % 13 - 6).to(type) / 8; }

double sum_of_squares(const Tensor& flat) { return flat.to(at::kDouble).square().sum().item<double>(); }

TEST(Summary, HasTheSquaresOfTheUnweightedDelta) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const Tensor anchor = exact(numel, type), wire = at::empty_like(anchor);
    FlatParams params({at::zeros({numel}, type)});
    EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 3).sum_squares, sum_of_squares(anchor)) << type;
    EXPECT_EQ(summarize(anchor).norm, std::sqrt(sum_of_squares(anchor))) << type;
  }
}

TEST(Summary, HasTheSquaresOfTheMeanDeltaAfterApply) {
  for (const bool with_velocity : {false, true}) {
    const Tensor wire = exact(numel, at::kFloat), anchor = at::zeros_like(wire);
    const Tensor velocity = with_velocity ? at::zeros_like(wire) : Tensor();
    FlatParams params({at::zeros({numel})});
    double squares = 0;
    kernels::apply(params.impl().pull(), anchor, velocity, wire, {.inverse_weight = 0.25}, &squares);
    EXPECT_EQ(squares, sum_of_squares(wire / 4));
  }
}

TEST(Summary, IsTheSameOnAnyNumberOfThreads) {
  torch::manual_seed(7);
  const Tensor anchor = at::randn({5 * block + 77}), start = at::randn_like(anchor), wire = at::empty_like(anchor);
  FlatParams params({start});
  const int threads_before = at::get_num_threads();
  std::vector<kernels::Summary> summaries;
  std::vector<double> applied;
  for (int threads = 1; threads <= 4; ++threads) {
    at::set_num_threads(threads);
    summaries.push_back(kernels::send(params.impl().pull(), anchor, wire, 1));
    kernels::apply(params.impl().pull(), anchor.clone(), Tensor(), wire, {.keep_local = 1}, &applied.emplace_back());
  }
  at::set_num_threads(threads_before);
  for (size_t i = 1; i < summaries.size(); ++i) {
    EXPECT_EQ(summaries[i].sum_squares, summaries[0].sum_squares);
    EXPECT_EQ(summaries[i].fingerprint, summaries[0].fingerprint);
    EXPECT_EQ(applied[i], applied[0]);
  }
}

TEST(NonFinite, AreCountedWhereverTheyAre) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const Tensor param = at::zeros({numel}, type);
    FlatParams params({param});
    const Tensor anchor = at::zeros({numel}, params.dtype()), wire = at::empty_like(anchor);
    EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 1).non_finite, 0);
    int64_t expected = 0;
    for (const int64_t place : {int64_t{0}, int64_t{15}, block - 1, block, numel - 1}) {
      for (const float value : {nan, infinity, -infinity}) {
        param[place] = value;
        EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 1).non_finite, expected + 1) << type << place;
      }
      ++expected;
    }
    EXPECT_EQ(summarize(wire).non_finite, expected);
  }
}

TEST(NonFinite, CountsAnAnchorThatTheParameterTypeCannotHold) {
  FlatParams params({at::zeros({3}, at::kHalf)});
  const Tensor anchor = at::tensor({1.0f, 65519.0f, 65520.0f}), wire = at::empty_like(anchor);
  EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 1).non_finite, 1);
}

TEST(NonFinite, CountsAFiniteDeltaThatOverflowsByItsWeight) {
  FlatParams params({at::zeros({3})});
  const Tensor anchor = at::tensor({1.0f, 2e38f, -2e38f}), wire = at::empty_like(anchor);
  EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 1).non_finite, 0);
  EXPECT_EQ(kernels::send(params.impl().pull(), anchor, wire, 2).non_finite, 2);
}

TEST(Fingerprint, IsTheSumOfItsTermsAndTheOneThatSendReports) {
  torch::manual_seed(7);
  for (const auto type : {at::kFloat, at::kDouble}) {
    const Tensor flat = at::randn({numel}, type), wire = at::empty_like(flat);
    uint64_t expected = 0;
    AT_DISPATCH_FLOATING_TYPES(type, "fingerprint", [&] {
      for (int64_t i = 0; i < numel; ++i) {
        expected += math::fingerprint_term(math::place_at(i), flat.const_data_ptr<scalar_t>()[i]);
      }
    });
    EXPECT_EQ(fingerprint(flat), expected);
    FlatParams params({at::zeros({1000}, type), at::zeros({numel - 1000}, type)});
    EXPECT_EQ(kernels::send(params.impl().pull(), flat, wire, 1).fingerprint, expected);
  }
}

TEST(Fingerprint, ChangesWithAnyOneBitOfAnyOneElement) {
  torch::manual_seed(7);
  const Tensor single = at::randn({numel}), twice = at::randn({numel}, at::kDouble);
  const uint64_t single_before = fingerprint(single), twice_before = fingerprint(twice);
  for (const int64_t place : {int64_t{0}, int64_t{1}, int64_t{16}, block - 1, block, numel - 1}) {
    auto* single_bits = reinterpret_cast<uint32_t*>(single.mutable_data_ptr<float>()) + place;
    for (int bit = 0; bit < 32; bit += 31) {
      *single_bits ^= 1u << bit;
      EXPECT_NE(fingerprint(single), single_before) << place;
      *single_bits ^= 1u << bit;
    }
    auto* twice_bits = reinterpret_cast<uint64_t*>(twice.mutable_data_ptr<double>()) + place;
    for (int bit = 0; bit < 64; bit += 21) {
      *twice_bits ^= uint64_t{1} << bit;
      EXPECT_NE(fingerprint(twice), twice_before) << place;
      *twice_bits ^= uint64_t{1} << bit;
    }
  }
  EXPECT_EQ(fingerprint(single), single_before);
  EXPECT_EQ(fingerprint(twice), twice_before);
}

TEST(Fingerprint, ChangesWhenTwoElementsSwapPlaces) {
  torch::manual_seed(7);
  const Tensor flat = at::randn({numel});
  const uint64_t before = fingerprint(flat);
  for (const int64_t place : {int64_t{0}, int64_t{15}, block - 1, numel - 2}) {
    for (const int64_t other : {place + 1, (place + block / 2) % numel}) {
      const Tensor swapped = flat.clone();
      swapped[place] = flat[other];
      swapped[other] = flat[place];
      EXPECT_NE(fingerprint(swapped), before) << place << " and " << other;
    }
  }
}

TEST(Fingerprint, TellsPlacesBeyond32BitsApart) {
  constexpr uint64_t far =
      uint64_t{1} << 33;  // the key's lowest bit is always set, so it takes two to change it surely
  for (const uint64_t index : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 1}) {
    EXPECT_NE(math::fingerprint_term(math::place_at(index), 1.5f),
              math::fingerprint_term(math::place_at(index + far), 1.5f));
    EXPECT_NE(math::fingerprint_term(math::place_at(index), 1.5),
              math::fingerprint_term(math::place_at(index + far), 1.5));
  }
}

TEST(Fingerprint, TakesADoubleAsTwoWordsAlsoWhereTheirPlacesPass32Bits) {
  constexpr uint64_t word_place = uint64_t{1} << 32;
  const double x = math::bit_cast<double>(uint64_t{0x3ff0000500000007});
  EXPECT_EQ(math::fingerprint_term(math::place_at(word_place / 2), x),
            math::fingerprint_word(math::place_at(word_place), 7) +
                math::fingerprint_word(math::place_at(word_place + 1), 0x3ff00005));
}

TEST(Subnormals, SurviveSendAndApplyOnEveryThread) {
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  const int threads_before = at::get_num_threads();
  at::set_num_threads(3);
  const Tensor anchor = at::full({3 * block}, 3 * tiny), wire = at::empty_like(anchor);
  const Tensor velocity = at::zeros_like(anchor), param = at::full({3 * block}, tiny);
  FlatParams params({param});
  kernels::send(params.impl().pull(), anchor, wire, 1);
  EXPECT_TRUE(same_bits(wire, at::full_like(wire, 2 * tiny)));
  kernels::apply(params.impl().pull(), anchor, velocity, wire, {.inverse_weight = 0.5, .momentum = 0.5});
  EXPECT_TRUE(same_bits(velocity, at::full_like(wire, tiny)));
  EXPECT_TRUE(same_bits(anchor, at::full_like(wire, 2 * tiny)));
  EXPECT_TRUE(same_bits(param, anchor));
  at::set_num_threads(threads_before);
}

}  // namespace
}  // namespace outerloop
