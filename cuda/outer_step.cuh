#pragma once

#include <outerloop/math.hpp>

#include "cuda/access.cuh"

namespace outerloop::cuda {

template <class S>
struct Coefficients {
  S inverse_weight, lr, momentum, keep_local;
  bool nesterov;
};

/// The outer step on `n` elements from `flat` on: reads anchor and velocity, writes next_anchor and next_velocity,
/// which may be the same memory. Returns the new anchor.
template <bool has_velocity, int n, class S>
__device__ __forceinline__ Pack<S, n> outer_step(const S* anchor, const S* velocity, S* next_anchor, S* next_velocity,
                                                 int64_t flat, const Pack<S, n>& mean_delta, const Coefficients<S>& c) {
  Pack<S, n> a = load<n>(anchor + flat);
  if constexpr (has_velocity) {
    Pack<S, n> v = load<n>(velocity + flat);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      math::momentum_step(a.values[i], v.values[i], mean_delta.values[i], c.lr, c.momentum, c.nesterov);
    }
    store<n>(next_velocity + flat, v);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) a.values[i] = math::descend(a.values[i], mean_delta.values[i], c.lr);
  }
  store<n>(next_anchor + flat, a);
  return a;
}

}  // namespace outerloop::cuda
