#pragma once

/// Stands in for CUB's reduction of a block: the same interface and, like CUB's, a result in thread 0 only and no
/// barrier at the end, so that who uses the storage again needs one. The order of the operations is its own.

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

namespace cub {

template <class T, int threads>
class BlockReduce {
  static_assert(std::is_trivially_copyable_v<T>);
  static constexpr int warps = (threads + warpSize - 1) / warpSize;

 public:
  struct TempStorage {
    alignas(T) unsigned char of_warp[warps][sizeof(T)];
  };

  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  template <class Operation>
  T Reduce(T value, Operation operation) {
    const unsigned block = blockDim.x * blockDim.y * blockDim.z;
    if (block != threads)
      outerloop::shim::fault(
          "cub::BlockReduce for " + std::to_string(threads) + " threads in a block of " + std::to_string(block),
          outerloop::shim::Site::current());
    const int thread = static_cast<int>(outerloop::shim::thread_in_block());
    const int lane = thread % warpSize, warp = thread / warpSize;
    const int lanes = std::min(warpSize, threads - warp * warpSize);
    const unsigned mask = 0xffffffffu >> (warpSize - lanes);
    for (int distance = warpSize / 2; distance > 0; distance /= 2) {
      const T other = shuffle_down(mask, value, distance);
      if (lane + distance < lanes) value = operation(value, other);
    }
    if (lane == 0) {
      outerloop::shim::writes(storage_.of_warp[warp], sizeof(T));
      std::memcpy(storage_.of_warp[warp], &value, sizeof(T));
    }
    __syncthreads();
    if (thread != 0) {
      std::memset(static_cast<void*>(&value), 0xff, sizeof(T));  // nobody's business, and so nobody's use
      return value;
    }
    for (int other = 1; other < warps; ++other) {
      T of_warp;
      outerloop::shim::reads(storage_.of_warp[other], sizeof(T));
      std::memcpy(static_cast<void*>(&of_warp), storage_.of_warp[other], sizeof(T));
      value = operation(value, of_warp);
    }
    return value;
  }

  T Sum(T value) {
    return Reduce(value, [](const T& a, const T& b) { return static_cast<T>(a + b); });
  }

 private:
  static T shuffle_down(unsigned mask, const T& value, int distance) {
    std::array<unsigned, (sizeof(T) + 3) / 4> words{};
    std::memcpy(words.data(), &value, sizeof(T));
    for (unsigned& word : words) word = __shfl_down_sync(mask, word, distance);
    T other;
    std::memcpy(static_cast<void*>(&other), words.data(), sizeof(T));
    return other;
  }

  TempStorage& storage_;
};

}  // namespace cub
