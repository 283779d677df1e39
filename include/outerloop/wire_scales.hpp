#pragma once

#include <outerloop/formats.hpp>

/// The scales of blocks in wires, float or Bfloat16 as they travel, for host and device.

namespace outerloop::wire_formats {

using math::Bfloat16;
using math::bit_cast;

/// Blocks in which nothing reaches this count as zero: 1 / scale stays finite.
inline constexpr float least_magnitude = 0x1p-100f;

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
