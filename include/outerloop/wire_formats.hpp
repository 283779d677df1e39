#pragma once

#include <outerloop/formats.hpp>

#include <cmath>

/// The number formats of wires whose elements share a scale by blocks, for host and device: how a value becomes a code
/// and back. An element x of a block with scale s has the code of y = x / s, which the format keeps within [-top, top].
///
/// Codes are rounded to the nearest level, ties to the even code; or, where draws are given, up or down at random, so
/// that the expectation is y. Every code stands for a finite number.

namespace outerloop::wire_formats {

using math::Bfloat16;
using math::bit_cast;

/// Blocks in which nothing reaches this count as zero: 1 / scale stays finite.
inline constexpr float least_magnitude = 0x1p-100f;

struct Nearest {};
struct Drawn {
  float draw;  ///< in [0, 1)
};

/// A whole number, of |y| < 2^22. Adding 1.5 * 2^23 rounds to nearest even, in the adder.
OUTERLOOP_HD float whole(float y, Nearest) { return (y + 0x1.8p23f) - 0x1.8p23f; }
OUTERLOOP_HD float whole(float y, Drawn rounding) {
  const float below = ::floorf(y);
  return y - below > rounding.draw ? below + 1 : below;
}

OUTERLOOP_HD float at_most(float y, float top) { return y < top ? y : top; }
OUTERLOOP_HD uint32_t sign_of(float y) { return bit_cast<uint32_t>(y) >> 31; }
OUTERLOOP_HD float magnitude_of(float y) { return bit_cast<float>(bit_cast<uint32_t>(y) & 0x7fffffffu); }
OUTERLOOP_HD float with_sign(float magnitude, uint32_t sign) {
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign << 31);
}

/// The upper `32 - dropped` bits of a positive number: its exponent and the mantissa that is kept.
OUTERLOOP_HD uint32_t upper_bits(float y, int dropped, Nearest) {
  const uint32_t bits = bit_cast<uint32_t>(y);
  return (bits + ((1u << (dropped - 1)) - 1u) + ((bits >> dropped) & 1u)) >> dropped;
}
OUTERLOOP_HD uint32_t upper_bits(float y, int dropped, Drawn rounding) {
  return (bit_cast<uint32_t>(y) + static_cast<uint32_t>(rounding.draw * static_cast<float>(1u << dropped))) >> dropped;
}

/// Whole numbers from -top to top, in two's complement.
template <int bits_, class Scale_>
struct Integer {
  using Scale = Scale_;
  static constexpr int bits = bits_;
  static constexpr float top = (1 << (bits - 1)) - 1;
  template <class Rounding>
  OUTERLOOP_HD static uint32_t code(float y, Rounding rounding) {
    const float n = whole(y, rounding);
    return static_cast<uint32_t>(static_cast<int32_t>(n < -top ? -top : at_most(n, top))) & ((1u << bits) - 1u);
  }
  OUTERLOOP_HD static float value(uint32_t code) {
    constexpr uint32_t sign = 1u << (bits - 1);
    return static_cast<float>(static_cast<int32_t>(code ^ sign) - static_cast<int32_t>(sign));
  }
};
using Int8 = Integer<8, float>;
using Int4 = Integer<4, Bfloat16>;

/// OCP 8-bit floating point E4M3 (1 sign, 4 exponent, 3 mantissa bits; subnormal below 2^-6), but that the code of its
/// NaN, which is not sent, stands for 480.
struct E4m3 {
  using Scale = float;
  static constexpr int bits = 8;
  static constexpr float top = 448;
  template <class Rounding>
  OUTERLOOP_HD static uint32_t code(float y, Rounding rounding) {
    const float m = at_most(magnitude_of(y), top);
    const uint32_t normal = upper_bits(m, 20, rounding) - ((127u - 7u) << 3);
    const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(whole(m * 512, rounding)));
    return (m < 0x1p-6f ? subnormal : normal) | sign_of(y) << 7;
  }
  OUTERLOOP_HD static float value(uint32_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
    const float normal = bit_cast<float>((magnitude << 20) + ((127u - 7u) << 23));
    return with_sign(magnitude < 8 ? subnormal : normal, code >> 7);
  }
};

/// 1 sign, 2 exponent, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6 (OCP MX FP4).
struct E2m1 {
  using Scale = Bfloat16;
  static constexpr int bits = 4;
  static constexpr float top = 6;
  template <class Rounding>
  OUTERLOOP_HD static uint32_t code(float y, Rounding rounding) {
    const float m = at_most(magnitude_of(y), top);
    const bool low = m < 2, middle = m < 4;
    const float steps = low ? 2 * m : middle ? m : 0.5f * m;
    const auto code = static_cast<int32_t>(whole(steps, rounding)) + (low ? 0 : middle ? 2 : 4);
    return static_cast<uint32_t>(code) | sign_of(y) << 3;
  }
  OUTERLOOP_HD static float value(uint32_t code) {
    const uint32_t magnitude = code & 7u;
    const float subnormal = magnitude == 0 ? 0.0f : 0.5f;
    const float normal = bit_cast<float>((magnitude << 22) + (126u << 23));
    return with_sign(magnitude < 2 ? subnormal : normal, code >> 3);
  }
};

/// 1 sign, 3 exponent bits, no mantissa: 0 and 2^-6 to 1. The wire of Streaming DiLoCo, which tells neither its scale
/// nor how it writes zero: here the scale is the block's largest magnitude.
struct E3m0 {
  using Scale = float;
  static constexpr int bits = 4;
  static constexpr float top = 1;
  template <class Rounding>
  OUTERLOOP_HD static uint32_t code(float y, Rounding rounding) {
    const float m = at_most(magnitude_of(y), top);
    const uint32_t power = upper_bits(m, 23, rounding) - 120u;  // 2^-6 has exponent 121
    const auto near_zero = static_cast<uint32_t>(static_cast<int32_t>(whole(m * 64, rounding)));
    return (m < 0x1p-6f ? near_zero : power) | sign_of(y) << 3;
  }
  OUTERLOOP_HD static float value(uint32_t code) {
    const uint32_t power = code & 7u;
    return with_sign(power == 0 ? 0.0f : bit_cast<float>((power + 120u) << 23), code >> 3);
  }
};

/// The 16 levels of NormalFloat (Dettmers et al., 2023, QLoRA, arXiv:2305.14314): quantiles of the normal distribution
/// over its largest magnitude, with an exact zero.
struct Nf4 {
  using Scale = Bfloat16;
  static constexpr int bits = 4;
  static constexpr float top = 1;
  OUTERLOOP_HD static float value(uint32_t code) {
    constexpr float levels[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};
    return levels[code & 15u];
  }
  /// The number of limits between levels that y is above.
  OUTERLOOP_HD static uint32_t code(float y, Nearest) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < 15; ++i) above += y > 0.5f * (value(i) + value(i + 1)) ? 1u : 0u;
    return above;
  }
  OUTERLOOP_HD static uint32_t code(float y, Drawn rounding) {
    uint32_t below = 0;
    for (uint32_t i = 1; i < 15; ++i) below += y >= value(i) ? 1u : 0u;
    const float low = value(below), high = value(below + 1);
    return below + (y - low > rounding.draw * (high - low) ? 1u : 0u);
  }
};

OUTERLOOP_HD float next_below(float positive) { return bit_cast<float>(bit_cast<uint32_t>(positive) - 1u); }
OUTERLOOP_HD Bfloat16 next_below(Bfloat16 positive) { return {static_cast<uint16_t>(positive.bits - 1u)}; }

/// A block's scale as it travels, from the bits of the largest magnitude in it. Largest as a whole number: what is
/// infinite or NaN stays so. Rounding makes nothing infinite.
template <class Scale>
OUTERLOOP_HD Scale scale_of(uint32_t largest, float top) {
  const float magnitude = bit_cast<float>(largest);
  if (magnitude < least_magnitude) return math::narrow<Scale>(0.0f);
  const Scale scale = math::narrow<Scale>(magnitude / top);
  const bool finite = bit_cast<uint32_t>(math::widen(scale) * top) < 0x7f800000u;
  return largest < 0x7f800000u && !finite ? next_below(scale) : scale;
}
/// What elements are multiplied by before they are coded.
template <class Scale>
OUTERLOOP_HD float inverse_of(Scale scale) {
  const float s = math::widen(scale);
  return s == 0 ? 0.0f : 1.0f / s;
}
/// A scale that was sent is finite and not negative.
OUTERLOOP_HD bool is_scale(float scale) { return bit_cast<uint32_t>(scale) < 0x7f800000u; }

}  // namespace outerloop::wire_formats
