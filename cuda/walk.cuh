#pragma once

#include <algorithm>

#include "cuda/access.cuh"
#include "cuda/check.hpp"
#include "cuda/launch.hpp"

/// How a launch covers its elements: blocks take chunks in turn, threads take 16 bytes of state at a time, and what is
/// left at the ends of a chunk one by one.

namespace outerloop::cuda {

inline constexpr int block_threads = 256;
/// 2048 threads with a few 16-byte loads each keep more bytes in flight than the memory needs (48 KiB per
/// multiprocessor on an H200, 64 on a B200), without unrolling.
inline constexpr int blocks_per_multiprocessor = 8;
/// Room for the partial sums of the largest grid: far more multiprocessors than there are.
inline constexpr int64_t most_blocks = 8192;

/// ptxas is held to the registers that allow so many where it can do that without spills: not for compute capability
/// 10, for which it wants up to 40; 7.5 runs no more than 1024 threads.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
#define OUTERLOOP_KERNEL __global__ void __launch_bounds__(block_threads)
#else
#define OUTERLOOP_KERNEL __global__ void __launch_bounds__(block_threads, blocks_per_multiprocessor)
#endif

/// Where the chunks come from: a table, or a flat vector alone, which is then what they are of.
struct Chunks {
  const Chunk* table;
  int64_t count;
  void* flat;
  int64_t numel;
  bool aligned;  ///< all flat vectors begin at multiples of 16 bytes
};

template <class S>
__device__ __forceinline__ Chunk chunk_at(const Chunks& chunks, int64_t index) {
  if (chunks.table) return chunks.table[index];
  const int64_t offset = index * chunk_size, rest = chunks.numel - offset;
  return {static_cast<S*>(chunks.flat) + offset, offset, rest < chunk_size ? rest : chunk_size};
}

template <class T>
__device__ __forceinline__ bool is_word(const T* at, int n) {
  return reinterpret_cast<uintptr_t>(at) % (sizeof(T) * n) == 0;
}

/// visit.run<n, whole>(T* params, int64_t flat) for all elements, `n` at a time: those of the parameter from `params`
/// on, which are those of the flat vectors from `flat` on. Where n > 1, the latter are one aligned word; the former are
/// if `whole`.
template <class S, class T, class Visit>
__device__ __forceinline__ void walk(const Chunks& chunks, Visit& visit) {
  constexpr int width = 16 / sizeof(S);
  for (int64_t index = blockIdx.x; index < chunks.count; index += gridDim.x) {
    const Chunk chunk = chunk_at<S>(chunks, index);
    T* const params = static_cast<T*>(chunk.data);
    const int numel = static_cast<int>(chunk.numel);
    const int to_word = chunks.aligned ? static_cast<int>(-chunk.offset & (width - 1)) : numel;
    const int head = to_word < numel ? to_word : numel;
    const int words = (numel - head) / width, edges = numel - words * width;
    const bool whole = is_word(params + head, width);
#pragma unroll 1
    for (int turn = threadIdx.x; turn < words + edges; turn += block_threads) {
      if (turn < words) {
        const int i = head + turn * width;
        if (whole) {
          visit.template run<width, true>(params + i, chunk.offset + i);
        } else {
          visit.template run<width, false>(params + i, chunk.offset + i);
        }
      } else {
        const int edge = turn - words, i = edge < head ? edge : edge + words * width;
        visit.template run<1, true>(params + i, chunk.offset + i);
      }
    }
  }
}

inline bool is_aligned(const void* flat) { return reinterpret_cast<uintptr_t>(flat) % 16 == 0; }

template <class... Flats>
Chunks chunks_of(const Table& table, const Flats*... flats) {
  return {table.chunks, table.count, nullptr, 0, (is_aligned(flats) && ...)};
}
template <class... Flats>
Chunks chunks_of(int64_t numel, const void* flat, const Flats*... others) {
  return {nullptr, (numel + chunk_size - 1) / chunk_size, const_cast<void*>(flat), numel,
          is_aligned(flat) && (is_aligned(others) && ...)};
}

/// The only launch there is: as many blocks as the device runs at once, or one for each chunk if that is less; one at
/// least, as sums must be written.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Chunks, Parameters...), const Chunks& chunks, cudaStream_t stream, Arguments... arguments) {
  int device = 0, multiprocessors = 0;
  OUTERLOOP_CUDA_CHECK(cudaGetDevice(&device));
  OUTERLOOP_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t at_once = std::min<int64_t>(most_blocks, int64_t{multiprocessors} * blocks_per_multiprocessor);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::max<int64_t>(1, std::min(chunks.count, at_once))));
  config.blockDim = dim3(block_threads);
  config.stream = stream;
  OUTERLOOP_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, chunks, static_cast<Parameters>(arguments)...));
}

}  // namespace outerloop::cuda
