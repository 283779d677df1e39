#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <outerloop/math.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace outerloop {
namespace {

constexpr uint32_t patterns = 1u << 16;

/// All 2^16 values of a 16-bit type, converted by ATen.
std::vector<float> widened_by_aten(at::ScalarType type) {
  const at::Tensor bits = at::arange(patterns, at::kInt).to(at::kShort);
  const at::Tensor values = bits.view(type).to(at::kFloat);
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + patterns};
}

template <class T>
void expect_widen_like_aten(at::ScalarType type) {
  const std::vector<float> expected = widened_by_aten(type);
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const float value = math::widen(T{static_cast<uint16_t>(bits)});
    if (std::isnan(expected[bits])) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(math::bit_cast<uint32_t>(value), math::bit_cast<uint32_t>(expected[bits])) << bits;
    }
  }
}

template <class T>
void expect_narrow_like_aten(at::ScalarType type, const at::Tensor& floats) {
  const at::Tensor expected = floats.to(type).view(at::kShort);
  const float* from = floats.const_data_ptr<float>();
  const int16_t* to = expected.const_data_ptr<int16_t>();
  for (int64_t i = 0; i < floats.numel(); ++i) {
    const T narrowed = math::narrow<T>(from[i]);
    if (std::isnan(from[i])) {
      ASSERT_TRUE(std::isnan(math::widen(narrowed))) << from[i];
    } else {
      ASSERT_EQ(narrowed.bits, static_cast<uint16_t>(to[i])) << std::hexfloat << from[i];
    }
  }
}

/// Every sign, exponent and upper 7 bits of mantissa, with lower bits on, beside and far from each rounding boundary of
/// both types: bfloat16 drops 16 bits, float16 drops 13 (more where its results are subnormal).
template <class T>
void expect_narrow_like_aten_everywhere(at::ScalarType type) {
  const at::Tensor upper = at::arange(patterns, at::kLong) * patterns;
  for (uint32_t kept = 0; kept < 8; ++kept) {
    for (uint32_t dropped : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu}) {
      const int64_t lower = static_cast<int64_t>((kept << 13) + dropped);
      expect_narrow_like_aten<T>(type, (upper + lower).to(at::kInt).view(at::kFloat));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Widen, EveryBfloat16IsWhatAtenMakesOfIt) { expect_widen_like_aten<math::Bfloat16>(at::kBFloat16); }
TEST(Widen, EveryFloat16IsWhatAtenMakesOfIt) { expect_widen_like_aten<math::Float16>(at::kHalf); }

TEST(Narrow, RoundsToBfloat16LikeAten) { expect_narrow_like_aten_everywhere<math::Bfloat16>(at::kBFloat16); }
TEST(Narrow, RoundsToFloat16LikeAten) { expect_narrow_like_aten_everywhere<math::Float16>(at::kHalf); }

TEST(Narrow, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(math::narrow<math::Bfloat16>(1.0f + 0x1p-8f).bits, 0x3f80);  // between 1 and 1 + 2^-7
  EXPECT_EQ(math::narrow<math::Bfloat16>(1.0f + 0x3p-8f).bits, 0x3f82);
  EXPECT_EQ(math::narrow<math::Float16>(1.0f + 0x1p-11f).bits, 0x3c00);  // between 1 and 1 + 2^-10
  EXPECT_EQ(math::narrow<math::Float16>(1.0f + 0x3p-11f).bits, 0x3c02);
  EXPECT_EQ(math::narrow<math::Float16>(0x1p-25f).bits, 0x0000);  // half the smallest subnormal
  EXPECT_EQ(math::narrow<math::Float16>(0x3p-25f).bits, 0x0002);
}

TEST(Narrow, OverflowsToInfinityOnlyFromHalfwayOn) {
  EXPECT_EQ(math::narrow<math::Float16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(math::narrow<math::Float16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(math::narrow<math::Float16>(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(math::narrow<math::Bfloat16>(0x1.fefffep127f).bits, 0x7f7f);
  EXPECT_EQ(math::narrow<math::Bfloat16>(0x1.ffp127f).bits, 0x7f80);
}

TEST(Narrow, GivesBackWhatWasWidened) {
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const math::Bfloat16 brain{static_cast<uint16_t>(bits)};
    const math::Float16 half{static_cast<uint16_t>(bits)};
    if (!std::isnan(math::widen(brain))) {
      ASSERT_EQ(math::narrow<math::Bfloat16>(math::widen(brain)).bits, bits);
    }
    if (!std::isnan(math::widen(half))) {
      ASSERT_EQ(math::narrow<math::Float16>(math::widen(half)).bits, bits);
    }
  }
}

TEST(Mix, KeepsNothingOrAllOfTheLocalValueExactly) {
  for (const float anchor : {0.1f, -3.7e-8f, 1e30f}) {
    for (const float local : {-0.3f, 5.5e7f, 2e-20f}) {
      EXPECT_EQ(math::mix(anchor, local, 0.0f), anchor);
      EXPECT_EQ(math::mix(anchor, local, 1.0f), local);
    }
  }
  EXPECT_EQ(math::mix(1.0f, 2.0f, 0.25f), 1.25f);
}

TEST(IsFinite, IsFalseForInfinitiesAndNanAlone) {
  using Single = std::numeric_limits<float>;
  using Double = std::numeric_limits<double>;
  for (const float x : {0.0f, -1.0f, Single::max(), Single::lowest(), Single::denorm_min()}) {
    EXPECT_TRUE(math::is_finite(x)) << x;
  }
  for (const double x : {0.0, -1.0, Double::max(), Double::lowest(), Double::denorm_min()}) {
    EXPECT_TRUE(math::is_finite(x)) << x;
  }
  for (const float x : {Single::infinity(), -Single::infinity(), Single::quiet_NaN(), -Single::quiet_NaN()}) {
    EXPECT_FALSE(math::is_finite(x)) << x;
    EXPECT_FALSE(math::is_finite(static_cast<double>(x))) << x;
  }
}

}  // namespace
}  // namespace outerloop
