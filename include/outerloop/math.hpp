#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

/// The scalar formulas of a round, each written once, for host and device. Multiply-adds are spelled fmaf/fma, so that
/// every compiler rounds them alike. `S` is the type of the outer state: float, or double for float64 parameters.

#if defined(__CUDACC__)
#define OUTERLOOP_HD __host__ __device__ __forceinline__
#else
#define OUTERLOOP_HD [[gnu::always_inline]] inline
#endif

namespace outerloop::math {

template <class To, class From>
OUTERLOOP_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

OUTERLOOP_HD float multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
OUTERLOOP_HD double multiply_add(double a, double b, double c) { return ::fma(a, b, c); }

/// Parameter storage types that are not C++ arithmetic types: the bits of a bfloat16 and of an IEEE binary16.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

OUTERLOOP_HD float widen(float x) { return x; }
OUTERLOOP_HD double widen(double x) { return x; }
OUTERLOOP_HD float widen(Bfloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
OUTERLOOP_HD float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  // Normal numbers: rebias the exponent by 127 - 15. Infinity and NaN (exponent 31): rebias to 255.
  const uint32_t rebias = magnitude >= 0x7c00u ? (255u - 31u) << 23 : (127u - 15u) << 23;
  const uint32_t normal = (magnitude << 13) + rebias;
  // Subnormal numbers are multiples of 2^-24, the spacing of floats in [0.5, 1).
  const float subnormal = bit_cast<float>(magnitude | 0x3f000000u) - 0.5f;
  return bit_cast<float>(sign | (magnitude < 0x0400u ? bit_cast<uint32_t>(subnormal) : normal));
}

/// Rounds to the nearest representable value, ties to even. narrow<float>(x) is x.
template <class T>
struct Narrow;
template <>
struct Narrow<float> {
  OUTERLOOP_HD static float from(float x) { return x; }
};
template <>
struct Narrow<double> {
  OUTERLOOP_HD static double from(double x) { return x; }
};
template <>
struct Narrow<Bfloat16> {
  OUTERLOOP_HD static Bfloat16 from(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<uint16_t>(nan ? 0x7fc0u : rounded)};
  }
};
template <>
struct Narrow<Float16> {
  OUTERLOOP_HD static Float16 from(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result is subnormal: adding 0.5 rounds to a multiple of 2^-24, to nearest even, in the adder.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = bit_cast<uint32_t>(shifted) - 0x3f000000u;
    const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN, or infinity from 65520 upwards
    return {static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? special : finite))};
  }
};
template <class T, class S>
OUTERLOOP_HD T narrow(S x) {
  return Narrow<T>::from(x);
}

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
