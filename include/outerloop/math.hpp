#pragma once

#include <outerloop/formats.hpp>

#include <cmath>
#include <cstdint>

/// The scalar formulas of a round, each written once, for host and device. Multiply-adds are spelled fmaf/fma, so that
/// every compiler rounds them alike. `S` is the type of the outer state: float, or double for float64 parameters.

namespace outerloop::math {

OUTERLOOP_HD float multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
OUTERLOOP_HD double multiply_add(double a, double b, double c) { return ::fma(a, b, c); }

/// delta = anchor - local, taken on the grid of the parameter's type: with bfloat16 parameters the rounding of the
/// anchor would otherwise enter every delta as if training had moved there.
template <class T, class S>
OUTERLOOP_HD S delta(S anchor, T local) {
  return widen(narrow<T>(anchor)) - widen(local);
}

/// anchor <- anchor - lr * direction
template <class S>
OUTERLOOP_HD S descend(S anchor, S direction, S lr) {
  return multiply_add(-lr, direction, anchor);
}

/// velocity <- momentum * velocity + mean_delta
/// anchor   <- anchor - lr * (nesterov ? mean_delta + momentum * velocity : velocity)
template <class S>
OUTERLOOP_HD void momentum_step(S& anchor, S& velocity, S mean_delta, S lr, S momentum, bool nesterov) {
  velocity = multiply_add(momentum, velocity, mean_delta);
  anchor = descend(anchor, nesterov ? multiply_add(momentum, velocity, mean_delta) : velocity, lr);
}

/// params <- anchor + keep_local * (local - anchor), rounded to the parameter's type. Spelled so that keep_local 0 and
/// 1 give anchor and local exactly.
template <class T, class S>
OUTERLOOP_HD T mix(S anchor, T local, S keep_local) {
  return narrow<T>(multiply_add(keep_local, widen(local), multiply_add(-keep_local, anchor, anchor)));
}

OUTERLOOP_HD bool is_finite(float x) { return (bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
OUTERLOOP_HD bool is_finite(double x) { return (bit_cast<uint64_t>(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }

/// The place of an element in a flat vector, in halves: loops count in 32 bits, which vectorises twice as well.
struct Place {
  uint32_t low;
  uint32_t high;
};
OUTERLOOP_HD Place place_at(uint64_t index) {
  return {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
}

/// The fingerprint of a flat vector is the sum, modulo 2^64, of fingerprint_term over its elements: independent of the
/// order of summation, changed by every change of a single element and, in float32, by every exchange of two unequal
/// neighbours.
OUTERLOOP_HD uint64_t fingerprint_word(Place place, uint32_t bits) {
  const uint32_t key = (place.low * 0x9e3779b1u + place.high) | 1u;
  return static_cast<uint64_t>(bits) * key;
}
OUTERLOOP_HD uint64_t fingerprint_term(Place place, float x) { return fingerprint_word(place, bit_cast<uint32_t>(x)); }
OUTERLOOP_HD uint64_t fingerprint_term(Place place, double x) {
  const uint64_t bits = bit_cast<uint64_t>(x);
  const Place even{2 * place.low, 2 * place.high + (place.low >> 31)}, odd{even.low + 1, even.high};
  return fingerprint_word(even, static_cast<uint32_t>(bits)) + fingerprint_word(odd, static_cast<uint32_t>(bits >> 32));
}

}  // namespace outerloop::math
