#pragma once

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include <outerloop/math.hpp>

#include "kernels/kernels.hpp"

/// How a flat vector is walked: blocks of fixed size over the threads, and within a block the parameters it touches.

namespace outerloop::kernels::cpu {

/// Elements per block: 3 streams of 128 KiB stay in a core's L2, and a block is long enough to pay for a task.
inline constexpr int64_t block_size = 32768;

/// body(block, begin, end) for every block of [0, numel), on at::get_num_threads() threads.
template <class Body>
void for_each_block(int64_t numel, const Body& body) {
  const int64_t blocks = (numel + block_size - 1) / block_size;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      body(block, block * block_size, std::min(numel, (block + 1) * block_size));
    }
  });
}

/// Sums what body(begin, end) returns for every block, in the order of the blocks.
template <class Result, class Body>
Result sum_over_blocks(int64_t numel, const Body& body) {
  std::vector<Result> parts((numel + block_size - 1) / block_size);
  for_each_block(numel, [&](int64_t block, int64_t begin, int64_t end) { parts[block] = body(begin, end); });
  Result sum{};
  for (const Result& part : parts) sum += part;
  return sum;
}

/// body(T* elements, int64_t flat, int64_t n) for each run of one parameter's elements inside [begin, end), where T is
/// the parameter's type and `flat` the place of its first element. `S` is the type of the flat vector.
template <class S, class Body>
void for_each_run(const Segments& params, int64_t begin, int64_t end, const Body& body) {
  auto segment =
      std::partition_point(params.begin(), params.end(), [&](const Segment& s) { return s.offset + s.numel <= begin; });
  for (; segment != params.end() && segment->offset < end; ++segment) {
    const int64_t first = std::max(begin, segment->offset), last = std::min(end, segment->offset + segment->numel);
    const auto run = [&](auto* data) { body(data + (first - segment->offset), first, last - first); };
    if constexpr (std::is_same_v<S, double>) {
      run(static_cast<double*>(segment->data));
    } else {
      switch (segment->dtype) {
        case at::kFloat:
          run(static_cast<float*>(segment->data));
          break;
        case at::kBFloat16:
          run(static_cast<math::Bfloat16*>(segment->data));
          break;
        case at::kHalf:
          run(static_cast<math::Float16*>(segment->data));
          break;
        default:
          TORCH_INTERNAL_ASSERT(false, "no kernel for ", segment->dtype);
      }
    }
  }
}

}  // namespace outerloop::kernels::cpu
