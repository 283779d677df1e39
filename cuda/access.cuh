#pragma once

#include <cuda_runtime.h>
#include <outerloop/formats.hpp>

/// Every access to the vectors of a round: one word of up to 16 bytes, with a hint to the caches. A pointer that comes
/// from a table is generic to the compiler; these instructions are of global memory all the same.

namespace outerloop::cuda {

/// `n` neighbouring elements that move as one word.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T values[n];
};

template <size_t bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned int;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <class T, int n>
using Word = typename WordOf<sizeof(T) * n>::Type;

/// Read once in this launch: first to leave the caches.
template <int n, class T>
__device__ __forceinline__ Pack<T, n> load(const T* from) {
  return math::bit_cast<Pack<T, n>>(__ldcs(reinterpret_cast<const Word<T, n>*>(from)));
}

/// Not read again before the caches have seen everything else.
template <int n, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, n>& pack) {
  __stcs(reinterpret_cast<Word<T, n>*>(to), math::bit_cast<Word<T, n>>(pack));
}

/// Read soon: parameters, by the next forward pass.
template <int n, class T>
__device__ __forceinline__ void store_for_soon(T* to, const Pack<T, n>& pack) {
  __stwb(reinterpret_cast<Word<T, n>*>(to), math::bit_cast<Word<T, n>>(pack));
}

/// Parameters begin anywhere: where `whole` is false, their `n` elements are no aligned word and move one by one.
template <int n, bool whole, class T>
__device__ __forceinline__ Pack<T, n> load_params(const T* from) {
  if constexpr (whole) {
    return load<n>(from);
  } else {
    Pack<T, n> pack;
#pragma unroll
    for (int i = 0; i < n; ++i) pack.values[i] = load<1>(from + i).values[0];
    return pack;
  }
}
template <int n, bool whole, class T>
__device__ __forceinline__ void store_params(T* to, const Pack<T, n>& pack) {
  if constexpr (whole) {
    store_for_soon<n>(to, pack);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) store_for_soon<1>(to + i, Pack<T, 1>{{pack.values[i]}});
  }
}

}  // namespace outerloop::cuda
