#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <outerloop/math.hpp>

#include "kernels/kernels.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/// The innermost loops, over one run of elements of one type. Every pointer is __restrict: without it they do not
/// vectorise. Each is compiled for several instruction sets, and the machine's best is taken when the program starts;
/// results do not depend on it, as multiply-adds are explicit and sums are of integers, or, for the norms, of doubles.

/// (Levels of x86-64 are chosen by what the processor can do; names of processors would only match those very models.)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)  // the choice runs before ThreadSanitizer is ready
#define OUTERLOOP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OUTERLOOP_CLONES
#endif

namespace outerloop::kernels::cpu {

/// Elements computed into the L1 cache before they are written past the caches.
inline constexpr int64_t tile_size = 1024;

/// dst <- src past the caches, a cache line at a time: what is only written need not be read first. Follow with
/// stream_fence().
template <class T>
void stream(T* dst, const T* src, int64_t n) {
#if defined(__SSE2__)
  constexpr int64_t line = 64 / sizeof(T);
  const auto to_boundary = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) % 64 / sizeof(T));
  const int64_t head = std::min(n, to_boundary), end = head + (n - head) / line * line;
  std::memcpy(dst, src, head * sizeof(T));
  for (int64_t i = head; i < end; i += line) {
    const auto* from = reinterpret_cast<const __m128i*>(src + i);
    auto* to = reinterpret_cast<__m128i*>(dst + i);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(dst + end, src + end, (n - end) * sizeof(T));
#else
  std::memcpy(dst, src, n * sizeof(T));
#endif
}

/// Orders streamed writes before whatever this thread publishes next.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// A run lies inside one block, whose size divides 2^32: only the low half of its elements' places counts on.
template <class S, class T>
OUTERLOOP_CLONES Summary send_run(const S* __restrict anchor, const T* __restrict local, S* __restrict wire, int64_t n,
                                  S weight, int64_t flat) {
  const math::Place place = math::place_at(static_cast<uint64_t>(flat));
  double sum_squares = 0;
  int32_t non_finite = 0;
  uint64_t print = 0;
#pragma omp simd reduction(+ : sum_squares, non_finite, print)
  for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
    const S delta = math::delta(anchor[i], local[i]);
    const S sent = weight * delta;
    wire[i] = sent;
    sum_squares += static_cast<double>(delta) * static_cast<double>(delta);
    non_finite += !math::is_finite(sent);
    print += math::fingerprint_term({place.low + static_cast<uint32_t>(i), place.high}, anchor[i]);
  }
  return {sum_squares, non_finite, print};
}

template <class S>
struct Coefficients {
  S inverse_weight, lr, momentum, keep_local;
  bool nesterov;
};

/// next_anchor and next_velocity may be anchor and velocity.
template <bool has_velocity, class S>
OUTERLOOP_HD void outer_step(const S* anchor, const S* velocity, S* next_anchor, S* next_velocity, int64_t i,
                             S mean_delta, const Coefficients<S>& c) {
  S a = anchor[i];
  if constexpr (has_velocity) {
    S v = velocity[i];
    math::momentum_step(a, v, mean_delta, c.lr, c.momentum, c.nesterov);
    next_velocity[i] = v;
  } else {
    a = math::descend(a, mean_delta, c.lr);
  }
  next_anchor[i] = a;
}

/// With `mixes`, params are read as well as written.
template <bool has_velocity, bool mixes, class S, class T>
OUTERLOOP_CLONES double apply_run(S* __restrict anchor, S* __restrict velocity, const S* __restrict wire,
                                  T* __restrict params, int64_t n, Coefficients<S> c) {
  double sum_squares = 0;
#pragma omp simd reduction(+ : sum_squares)
  for (int64_t i = 0; i < n; ++i) {
    const S mean_delta = c.inverse_weight * wire[i];
    outer_step<has_velocity>(anchor, velocity, anchor, velocity, i, mean_delta, c);
    params[i] = mixes ? math::mix(anchor[i], params[i], c.keep_local) : math::narrow<T>(anchor[i]);
    sum_squares += static_cast<double>(mean_delta) * static_cast<double>(mean_delta);
  }
  return sum_squares;
}

template <bool has_velocity, class S>
OUTERLOOP_CLONES double step_apart_run(const S* __restrict anchor, const S* __restrict velocity, S* __restrict wire,
                                       S* __restrict next_velocity, int64_t n, Coefficients<S> c) {
  double sum_squares = 0;
#pragma omp simd reduction(+ : sum_squares)
  for (int64_t i = 0; i < n; ++i) {
    const S mean_delta = c.inverse_weight * wire[i];
    outer_step<has_velocity>(anchor, velocity, wire, next_velocity, i, mean_delta, c);
    sum_squares += static_cast<double>(mean_delta) * static_cast<double>(mean_delta);
  }
  return sum_squares;
}

template <class S, class T>
OUTERLOOP_CLONES void delta_run(const S* __restrict anchor, const T* __restrict local, S* __restrict delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) delta[i] = math::delta(anchor[i], local[i]);
}

template <class S, class T>
OUTERLOOP_CLONES void gather_run(const T* __restrict params, S* __restrict flat, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) flat[i] = math::widen(params[i]);
}

template <class S, class T>
OUTERLOOP_CLONES void scatter_run(const S* __restrict flat, T* __restrict params, int64_t n, S keep_local) {
  if (keep_local == 0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) params[i] = math::narrow<T>(flat[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) params[i] = math::mix(flat[i], params[i], keep_local);
  }
}

template <bool has_velocity, class S>
OUTERLOOP_CLONES void step_run(S* __restrict anchor, S* __restrict velocity, const S* __restrict mean_delta, int64_t n,
                               Coefficients<S> c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    outer_step<has_velocity>(anchor, velocity, anchor, velocity, i, mean_delta[i], c);
  }
}

template <class S>
OUTERLOOP_CLONES Summary summarize_run(const S* __restrict values, int64_t n, int64_t flat) {
  const math::Place place = math::place_at(static_cast<uint64_t>(flat));
  double sum_squares = 0;
  int32_t non_finite = 0;
  uint64_t print = 0;
#pragma omp simd reduction(+ : sum_squares, non_finite, print)
  for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
    sum_squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    non_finite += !math::is_finite(values[i]);
    print += math::fingerprint_term({place.low + static_cast<uint32_t>(i), place.high}, values[i]);
  }
  return {sum_squares, non_finite, print};
}

}  // namespace outerloop::kernels::cpu
