#pragma once

#include <outerloop/formats.hpp>

#include <cmath>

/// How numbers become codes, for host and device: to the nearest, ties to the even code; or, where there are draws, up
/// or down at random, so that the expectation is the number itself.

namespace outerloop::wire_formats {

using math::bit_cast;

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

/// A positive number without the lowest `dropped` bits: its exponent and the mantissa that is kept.
OUTERLOOP_HD uint32_t upper_bits(float y, int dropped, Nearest) {
  const uint32_t bits = bit_cast<uint32_t>(y);
  return (bits + ((1u << (dropped - 1)) - 1u) + ((bits >> dropped) & 1u)) >> dropped;
}
OUTERLOOP_HD uint32_t upper_bits(float y, int dropped, Drawn rounding) {
  return (bit_cast<uint32_t>(y) + static_cast<uint32_t>(rounding.draw * static_cast<float>(1u << dropped))) >> dropped;
}

OUTERLOOP_HD float at_most(float y, float top) { return y < top ? y : top; }
OUTERLOOP_HD uint32_t sign_of(float y) { return bit_cast<uint32_t>(y) >> 31; }
OUTERLOOP_HD float magnitude_of(float y) { return bit_cast<float>(bit_cast<uint32_t>(y) & 0x7fffffffu); }

}  // namespace outerloop::wire_formats
