#pragma once

#include <cub/block/block_reduce.cuh>

#include "cuda/walk.cuh"

/// Sums over all threads of a launch, in one launch: each block leaves its part, and the block that finds itself the
/// last one adds the parts up. The order is fixed by the grid, so the same device gives the same bits every time.

namespace outerloop::cuda {

struct Workspace {
  Summary total;
  unsigned int done;  ///< blocks that have left their part; 0 between launches
  alignas(16) Summary parts[most_blocks];
};

/// The sum over the block, in thread 0. All threads call it.
template <class Value>
__device__ __forceinline__ Value block_sum(Value value) {
  using Block = cub::BlockReduce<Value, block_threads>;
  __shared__ typename Block::TempStorage storage;
  const Value sum = Block(storage).Sum(value);
  __syncthreads();  // the storage serves the next sum too
  return sum;
}

/// Member by member: sums of whole structures would need more registers than all the rest of a kernel.
__device__ __forceinline__ Summary block_sum(const Summary& mine) {
  return {block_sum(mine.sum_squares), block_sum(mine.non_finite), block_sum(mine.fingerprint)};
}

__device__ __forceinline__ Summary plus(const Summary& a, const Summary& b) {
  return {a.sum_squares + b.sum_squares, a.non_finite + b.non_finite, a.fingerprint + b.fingerprint};
}

/// Called by all threads of the launch once.
__device__ __forceinline__ void add_up(const Summary& mine, const Sum& sum) {
  __shared__ bool is_last;
  Workspace& workspace = *sum.workspace;
  const Summary part = block_sum(mine);
  if (threadIdx.x == 0) {
    workspace.parts[blockIdx.x] = part;
    __threadfence();
    is_last = atomicInc(&workspace.done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;

  __threadfence();
  Summary rest{};
  for (unsigned int i = threadIdx.x; i < gridDim.x; i += block_threads) rest = plus(rest, workspace.parts[i]);
  const Summary total = block_sum(rest);
  if (threadIdx.x == 0) workspace.total = sum.goes_on ? plus(workspace.total, total) : total;
}

}  // namespace outerloop::cuda
