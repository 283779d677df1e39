#pragma once

#include <outerloop/rounding.hpp>
#include <outerloop/wire_scales.hpp>

#include <utility>

/// The number formats of wires whose elements share a scale by blocks, for host and device: how a value becomes a code
/// and back. An element x of a block with scale s has the code of y = x / s, which the format keeps within [-top, top].
/// Every code stands for a finite number.

namespace outerloop::wire_formats {

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

/// A sign, an exponent and `mantissa` bits, as IEEE has them but without infinities and NaN: with exponent 0 the number
/// is mantissa * 2^(1 - bias - mantissa bits), else (1 + mantissa / 2^mantissa bits) * 2^(exponent - bias).
template <int bits_, int mantissa, int bias, int top_, class Scale_>
struct Minifloat {
  using Scale = Scale_;
  static constexpr int bits = bits_;
  static constexpr float top = top_;
  template <class Rounding>
  OUTERLOOP_HD static uint32_t code(float y, Rounding rounding) {
    const float m = at_most(magnitude_of(y), top);
    const uint32_t normal = upper_bits(m, dropped, rounding) - (rebias >> dropped);
    const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(whole(m / step, rounding)));
    return (m < least_normal ? subnormal : normal) | sign_of(y) << (bits - 1);
  }
  OUTERLOOP_HD static float value(uint32_t code) {
    const uint32_t magnitude = code & ((1u << (bits - 1)) - 1u);
    const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * step;
    const uint32_t normal = (magnitude << dropped) + rebias;
    // By a mask: as a choice, compilers make it a branch, which does not vectorise.
    const uint32_t small = 0u - static_cast<uint32_t>(magnitude < (1u << mantissa));
    return bit_cast<float>((bit_cast<uint32_t>(subnormal) & small) | (normal & ~small) | (code >> (bits - 1)) << 31);
  }

 private:
  static constexpr int dropped = 23 - mantissa;                  ///< of float32's mantissa
  static constexpr uint32_t rebias = (127u - bias) << 23;        ///< between the exponents
  static constexpr float least_normal = 2.0f / (1 << bias);      ///< 2^(1 - bias)
  static constexpr float step = least_normal / (1 << mantissa);  ///< between subnormal numbers
};
/// OCP 8-bit floating point E4M3, but that the code of its NaN, which is not sent, stands for 480.
using E4m3 = Minifloat<8, 3, 7, 448, float>;
/// OCP MX FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
using E2m1 = Minifloat<4, 1, 1, 6, Bfloat16>;
/// 0 and 2^-6 to 1. The wire of Streaming DiLoCo, which tells neither its scale nor how it writes zero: here the scale
/// is the block's largest magnitude.
using E3m0 = Minifloat<4, 0, 7, 1, float>;

/// The 16 levels of NormalFloat (Dettmers et al., 2023, QLoRA, arXiv:2305.14314): quantiles of the normal distribution
/// over its largest magnitude, with an exact zero.
struct Nf4 {
  using Scale = Bfloat16;
  static constexpr int bits = 4;
  static constexpr float top = 1;
  static constexpr float levels[16] = {-1.0f,
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
  OUTERLOOP_HD static float value(uint32_t code) { return levels[code & 15u]; }
  OUTERLOOP_HD static uint32_t code(float y, Nearest) { return above(y, std::make_index_sequence<15>()); }
  OUTERLOOP_HD static uint32_t code(float y, Drawn rounding) {
    uint32_t below = 0;
    for (uint32_t i = 1; i < 15; ++i) below += y >= value(i) ? 1u : 0u;
    const float low = value(below), high = value(below + 1);
    return below + (y - low > rounding.draw * (high - low) ? 1u : 0u);
  }

 private:
  /// How many of the middles between levels are below y.
  template <size_t... i>
  OUTERLOOP_HD static uint32_t above(float y, std::index_sequence<i...>) {
    return ((y > 0.5f * (levels[i] + levels[i + 1]) ? 1u : 0u) + ...);
  }
};

}  // namespace outerloop::wire_formats
