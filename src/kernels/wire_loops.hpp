#pragma once

#include <outerloop/random.hpp>
#include <outerloop/wire_formats.hpp>

#include <algorithm>
#include <cstring>

#include "kernels/loops.hpp"
#include "kernels/wires.hpp"

/// The innermost loops of wires, over one tile; see loops.hpp.

namespace outerloop::kernels::cpu {

namespace formats = wire_formats;

/// The bits of the largest magnitude.
[[gnu::always_inline]] inline uint32_t largest_of(const float* __restrict values, int32_t n) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t magnitude = math::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// bytes <- codes, two to a byte, the first in the lower half. An odd last one has its byte alone.
[[gnu::always_inline]] inline void pack_halves(const uint8_t* __restrict codes, uint8_t* __restrict bytes, int32_t n) {
  const int32_t pairs = n / 2;
#pragma omp simd
  for (int32_t i = 0; i < pairs; ++i) {
    uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, 2);
    bytes[i] = static_cast<uint8_t>(pair | pair >> 4);
  }
  if (n % 2) bytes[pairs] = codes[n - 1];
}
[[gnu::always_inline]] inline void unpack_halves(const uint8_t* __restrict bytes, uint8_t* __restrict codes,
                                                 int32_t n) {
  const int32_t pairs = n / 2;
#pragma omp simd
  for (int32_t i = 0; i < pairs; ++i) {
    const auto pair = static_cast<uint16_t>((bytes[i] | bytes[i] << 4) & 0x0f0f);
    std::memcpy(codes + 2 * i, &pair, 2);
  }
  if (n % 2) codes[n - 1] = bytes[pairs] & 0x0f;
}

/// Stores the scale of each block; inverses <- what each element is multiplied with. `scales` may lie at any address.
template <class Format>
[[gnu::always_inline]] inline void store_scales(const float* __restrict values, int32_t n, int32_t block,
                                                uint8_t* __restrict scales, float* __restrict inverses) {
  using Scale = typename Format::Scale;
  for (int32_t first = 0; first < n; first += block) {
    const int32_t size = std::min(block, n - first);
    const Scale scale = formats::scale_of<Scale>(largest_of(values + first, size), Format::top);
    std::memcpy(scales + first / block * sizeof(Scale), &scale, sizeof(Scale));
    std::fill_n(inverses + first, size, formats::inverse_of(scale));
  }
}

/// A tile's codes. Long loops over all of it: those over a short block would be all remainder.
template <class Format>
OUTERLOOP_CLONES void encode_blocks(const float* __restrict values, int32_t n, int32_t block, uint8_t* __restrict codes,
                                    uint8_t* __restrict scales) {
  alignas(64) float inverses[wire_tile];
  alignas(64) uint8_t wide[wire_tile];
  store_scales<Format>(values, n, block, scales, inverses);
  uint8_t* __restrict const out = Format::bits == 8 ? codes : wide;
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) {
    out[i] = static_cast<uint8_t>(Format::code(values[i] * inverses[i], formats::Nearest{}));
  }
  if (Format::bits == 4) pack_halves(wide, codes, n);
}

/// The same with draws; `begin` is the tile's first element in the wire, a multiple of 4.
template <class Format>
void encode_blocks_drawn(const float* values, int32_t n, int32_t block, uint8_t* codes, uint8_t* scales, uint64_t key,
                         int64_t begin) {
  float inverses[wire_tile];
  uint8_t wide[wire_tile];
  store_scales<Format>(values, n, block, scales, inverses);
  uint8_t* const out = Format::bits == 8 ? codes : wide;
  for (int32_t i = 0; i < n; i += 4) {
    const random::Four draws = random::philox(static_cast<uint64_t>(begin + i) / 4, key);
    for (int32_t j = i; j < std::min(i + 4, n); ++j) {
      const formats::Drawn rounding{random::uniform(draws.word[j - i])};
      out[j] = static_cast<uint8_t>(Format::code(values[j] * inverses[j], rounding));
    }
  }
  if (Format::bits == 4) pack_halves(wide, codes, n);
}

template <class Format>
OUTERLOOP_CLONES void decode_blocks(const uint8_t* __restrict codes, const uint8_t* __restrict scales, int32_t n,
                                    int32_t block, float* __restrict values) {
  using Scale = typename Format::Scale;
  alignas(64) float wide_scales[wire_tile];
  for (int32_t first = 0; first < n; first += block) {
    Scale scale;
    std::memcpy(&scale, scales + first / block * sizeof(Scale), sizeof(Scale));
    std::fill_n(wide_scales + first, std::min(block, n - first), math::widen(scale));
  }
  alignas(64) uint8_t wide[wire_tile];
  if (Format::bits == 4) unpack_halves(codes, wide, n);
  const uint8_t* __restrict const in = Format::bits == 8 ? codes : wide;
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) values[i] = Format::value(in[i]) * wide_scales[i];
}

/// sum <- sum + factor * other
template <class T>
OUTERLOOP_CLONES void add_run(const T* __restrict other, float* __restrict sum, int32_t n, float factor) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) sum[i] = math::multiply_add(factor, math::widen(other[i]), sum[i]);
}

/// next <- sent - arrives
template <class T>
OUTERLOOP_CLONES void lose_run(const float* __restrict sent, const float* __restrict arrives, T* __restrict next,
                               int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) next[i] = math::narrow<T>(sent[i] - arrives[i]);
}

template <class T>
OUTERLOOP_CLONES void scale_run(T* __restrict values, int32_t n, T factor) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) values[i] *= factor;
}

template <class T>
OUTERLOOP_CLONES int64_t count_non_finite(const T* __restrict values, int32_t n) {
  int32_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int32_t i = 0; i < n; ++i) count += !math::is_finite(values[i]);
  return count;
}

template <class T>
OUTERLOOP_CLONES void narrow_run(const float* __restrict values, T* __restrict wire, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) wire[i] = math::narrow<T>(values[i]);
}
template <class T>
OUTERLOOP_CLONES void widen_run(const T* __restrict wire, float* __restrict values, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) values[i] = math::widen(wire[i]);
}

}  // namespace outerloop::kernels::cpu
