#pragma once

#include <cstdint>
#include <cstring>

/// The number formats of parameters and how the outer state's float32 or float64 turns into them and back, for host and
/// device. Conversions are of bits, so that every compiler rounds them alike.

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

}  // namespace outerloop::math
