#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "cuda/launch.hpp"
#include "kernels/backend.hpp"
#include "kernels/cases.hpp"
#include "kernels/shim_backend.hpp"

/// What the CUDA kernels do, counted in the shim: bytes, launches, and the addresses of elements beyond 2^31.

namespace outerloop {
namespace {

using testing::Tensors;

struct Traffic {
  double sent_bytes, applied_bytes;  ///< per element
  double wide;                       ///< share of the float32 and float64 vectors' bytes that moved 16 at a time
  uint64_t launches;
};

Traffic traffic_of(const Tensors& values, bool has_velocity = true, double keep_local = 0) {
  testing::Backend& backend = *testing::backends()[0];
  Tensors params;
  int64_t numel = 0;
  for (const Tensor& value : values) {
    params.push_back(backend.put_param(value, 0));
    numel += value.numel();
  }
  const auto flat = [&] {
    return backend.put_flat(at::zeros({numel}, values[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  };
  const Tensor anchor = flat(), wire = flat(), velocity = has_velocity ? flat() : Tensor();
  const auto n = static_cast<double>(numel);

  shim::reset_counters();
  backend.send(params, anchor, wire, 1);
  const shim::Counters sent = shim::counters();
  shim::reset_counters();
  backend.apply(params, anchor, velocity, wire, {.keep_local = keep_local});
  const shim::Counters applied = shim::counters();
  return {static_cast<double>(sent.bytes_loaded + sent.bytes_stored) / n,
          static_cast<double>(applied.bytes_loaded + applied.bytes_stored) / n,
          static_cast<double>(16 * sent.wide_accesses) / (n * 2 * static_cast<double>(anchor.element_size())),
          sent.launches + applied.launches};
}

TEST(Traffic, IsTwelveAndTwentyFourBytesForFloat32) {
  const Traffic traffic = traffic_of({at::ones({100000})});
  EXPECT_EQ(traffic.sent_bytes, 12);
  EXPECT_EQ(traffic.applied_bytes, 24);
}

TEST(Traffic, IsTenAndTwentyTwoBytesForSixteenBitParameters) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Traffic traffic = traffic_of({at::ones({100000}, type)});
    EXPECT_EQ(traffic.sent_bytes, 10);
    EXPECT_EQ(traffic.applied_bytes, 22);
  }
}

TEST(Traffic, IsTwiceThatForFloat64) {
  const Traffic traffic = traffic_of({at::ones({100000}, at::kDouble)});
  EXPECT_EQ(traffic.sent_bytes, 24);
  EXPECT_EQ(traffic.applied_bytes, 48);
}

TEST(Traffic, SavesTheVelocityWhereThereIsNoneAndReadsParamsOnlyToMix) {
  EXPECT_EQ(traffic_of({at::ones({100000})}, false).applied_bytes, 16);
  EXPECT_EQ(traffic_of({at::ones({100000})}, true, 0.5).applied_bytes, 28);
}

TEST(Traffic, IsTwoLaunchesWhateverTheNumberOfTensors) {
  for (const size_t count : {1, 300, 5000}) {
    EXPECT_EQ(traffic_of(Tensors(count, at::ones({5}))).launches, 2u) << count;
  }
}

TEST(Traffic, MovesSixteenBytesAtATimeButAtTheEndsOfTensors) {
  const Traffic aligned = traffic_of({at::ones({100000})});
  EXPECT_EQ(aligned.wide, 1.5);  // anchor, wire, and params, of the former two's bytes
  const Traffic odd = traffic_of({at::ones({3}), at::ones({99997})});
  EXPECT_GT(odd.wide, 0.999);  // params are not aligned where the flat vectors are
}

/// Address space for a vector, without memory for it: pages appear when they are written.
struct Reserved {
  explicit Reserved(size_t bytes)
      : size(bytes),
        data(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() { munmap(data, size); }
  float* at(int64_t index) const { return static_cast<float*>(data) + index; }
  size_t size;
  void* data;
};

TEST(Index, ReachesBeyondTwoToTheThirtyFirst) {
  constexpr int64_t numel = (int64_t{1} << 31) + 3 * cuda::chunk_size + 5, bytes = 4 * numel;
  const Reserved params(bytes), anchor(bytes), wire(bytes), velocity(bytes);
  ASSERT_NE(params.data, MAP_FAILED);
  ASSERT_NE(anchor.data, MAP_FAILED);
  ASSERT_NE(wire.data, MAP_FAILED);
  ASSERT_NE(velocity.data, MAP_FAILED);
  const std::vector<cuda::Chunk> all = cuda::cut({{params.data, 0, numel}}, cuda::Type::float32);
  EXPECT_EQ(all.back().offset + all.back().numel, numel);
  constexpr int64_t last = 2;
  const cuda::Table table{all.data() + all.size() - last, last, cuda::Type::float32};
  const int64_t first = table.chunks[0].offset;
  ASSERT_GT(first, int64_t{1} << 31);
  for (int64_t i = first; i < numel; ++i) {
    *anchor.at(i) = static_cast<float>(i - first);
    *params.at(i) = 1;
  }

  std::vector<char> memory(cuda::workspace_bytes() + 16);
  auto* workspace =
      reinterpret_cast<cuda::Workspace*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) & ~uintptr_t{15});
  cuda::send({table, anchor.data, wire.data, 2, {workspace, false}}, nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(*wire.at(i), 2 * (static_cast<float>(i - first) - 1)) << i;
  cuda::apply({.params = table,
               .anchor = anchor.data,
               .velocity = velocity.data,
               .wire = wire.data,
               .inverse_weight = 0.5,
               .lr = 1,
               .momentum = 0,
               .nesterov = false,
               .keep_local = 0,
               .sum = {workspace, false}},
              nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(*params.at(i), 1) << i;
}

}  // namespace
}  // namespace outerloop
