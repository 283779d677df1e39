#include <ATen/ATen.h>
#include <cuda_runtime.h>  // of tests/cuda/shim
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <outerloop/math.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/launch.hpp"

/// What callers of cuda/launch.hpp meet, in the shim: errors of CUDA, and elements beyond 2^31.

namespace outerloop {
namespace {

TEST(Launch, ThrowsTheErrorOfAnyCallOfCuda) {
  const at::Tensor anchor = at::ones({5}), mean_delta = at::ones({5});
  const auto step = [&] {
    cuda::step({.type = cuda::Type::float32,
                .numel = 5,
                .anchor = anchor.mutable_data_ptr(),
                .velocity = nullptr,
                .mean_delta = mean_delta.const_data_ptr(),
                .lr = 1,
                .momentum = 0,
                .nesterov = false},
               nullptr);
  };
  int calls_before = 0;
  for (const std::string call : {"cudaGetDevice(", "cudaDeviceGetAttribute(", "cudaLaunchKernelEx("}) {
    shim::fail(cudaErrorInvalidValue, calls_before++);
    try {
      step();
      ADD_FAILURE() << call << " failed, and nothing was thrown";
    } catch (const std::runtime_error& error) {
      const std::string what = error.what(), end = "): cudaErrorInvalidValue, invalid argument";
      EXPECT_TRUE(what.starts_with(call) && what.ends_with(end)) << what;
    }
  }
  EXPECT_EQ(anchor.sum().item<float>(), 5);
  step();
  EXPECT_EQ(anchor.sum().item<float>(), 0);
}

// ---- beyond 2^31

constexpr int64_t far = int64_t{1} << 31;

/// Address space for a vector, without memory for it: pages appear when they are written.
class Reserved {
 public:
  explicit Reserved(int64_t numel)
      : bytes_(4 * numel),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::runtime_error("no address space");
  }
  ~Reserved() { munmap(data_, bytes_); }
  float& operator[](int64_t index) const { return static_cast<float*>(data_)[index]; }
  void* data() const { return data_; }

 private:
  const size_t bytes_;
  void* const data_;
};

/// Whole vectors, of which kernels take the last elements only.
class Index : public ::testing::Test {
 protected:
  cuda::Workspace* workspace() const { return static_cast<cuda::Workspace*>(workspace_.mutable_data_ptr()); }

  static constexpr int64_t numel = far + 3 * cuda::chunk_size + 5;
  const Reserved params{numel}, anchor{numel}, wire{numel}, velocity{numel};

 private:
  const at::Tensor workspace_ = at::zeros({static_cast<int64_t>(cuda::workspace_bytes())}, at::kByte);
};

/// The last two chunks of one parameter: 1 in the parameter, 0, 1, 2... in the anchor.
class IndexOfParameters : public Index {
 protected:
  IndexOfParameters() {
    for (int64_t i = first; i < numel; ++i) {
      params[i] = 1;
      anchor[i] = static_cast<float>(i - first);
    }
  }
  const std::vector<cuda::Chunk> all = cuda::cut({{params.data(), 0, numel}}, cuda::Type::float32);
  const cuda::Table table{all.data() + all.size() - 2, 2, cuda::Type::float32};
  const int64_t first = table.chunks[0].offset;
};

TEST_F(IndexOfParameters, ReachesBeyondTwoToTheThirtyFirst) {
  ASSERT_GT(first, far);
  ASSERT_EQ(all.back().offset + all.back().numel, numel);
  cuda::send({table, anchor.data(), wire.data(), 2, {workspace(), false}}, nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(wire[i], 2 * (static_cast<float>(i - first) - 1)) << i;
  cuda::apply({.params = table,
               .anchor = anchor.data(),
               .velocity = velocity.data(),
               .wire = wire.data(),
               .inverse_weight = 0.5,
               .lr = 1,
               .momentum = 0,
               .nesterov = false,
               .keep_local = 0,
               .sum = {workspace(), false}},
              nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(params[i], 1) << i;
}

TEST_F(IndexOfParameters, ReachesBeyondTwoToTheThirtyFirstInEachStage) {
  cuda::delta(table, anchor.data(), wire.data(), nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(wire[i], static_cast<float>(i - first) - 1) << i;
  cuda::scatter(table, anchor.data(), 0, nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(params[i], static_cast<float>(i - first)) << i;
  cuda::gather(table, velocity.data(), nullptr);
  for (int64_t i = first; i < numel; ++i) ASSERT_EQ(velocity[i], static_cast<float>(i - first)) << i;
}

/// Kernels that work their chunks out: of the largest grid there is only the first block runs, which takes the first
/// chunk that begins at 2^31, and 32 before it.
class IndexOfFlatVectors : public Index {
 protected:
  IndexOfFlatVectors() {
    static_assert(far % (blocks * cuda::chunk_size) == 0);
    shim::multiprocessors(1024);
    shim::run_blocks_before(1);
    for (int64_t i = far; i < far + 5; ++i) {
      anchor[i] = static_cast<float>(i - far);
      wire[i] = 1;
    }
  }
  ~IndexOfFlatVectors() override { shim::run_blocks_before(0); }
  static constexpr int64_t blocks = 8192;
};

TEST_F(IndexOfFlatVectors, ReachesBeyondTwoToTheThirtyFirstInAStep) {
  cuda::step({.type = cuda::Type::float32,
              .numel = far + 5,
              .anchor = anchor.data(),
              .velocity = velocity.data(),
              .mean_delta = wire.data(),
              .lr = 2,
              .momentum = 0,
              .nesterov = false},
             nullptr);
  for (int64_t i = far; i < far + 5; ++i) {
    EXPECT_EQ(anchor[i], static_cast<float>(i - far) - 2);
    EXPECT_EQ(velocity[i], 1);
  }
}

TEST_F(IndexOfFlatVectors, ReachesBeyondTwoToTheThirtyFirstInAStepApart) {
  const Reserved next_velocity{far + 5};
  for (int64_t i = far; i < far + 5; ++i) velocity[i] = 2;
  cuda::step_apart({.type = cuda::Type::float32,
                    .numel = far + 5,
                    .anchor = anchor.data(),
                    .velocity = velocity.data(),
                    .wire = wire.data(),
                    .next_velocity = next_velocity.data(),
                    .inverse_weight = 0.5,
                    .lr = 2,
                    .momentum = 0.25,
                    .nesterov = false,
                    .sum = {nullptr, false}},
                   nullptr);
  for (int64_t i = far; i < far + 5; ++i) {
    EXPECT_EQ(next_velocity[i], 1);
    EXPECT_EQ(wire[i], static_cast<float>(i - far) - 2);
  }
}

/// The whole sum is never made: that of the first block is the first of those at the end of the workspace.
TEST_F(IndexOfFlatVectors, ReachesBeyondTwoToTheThirtyFirstInASum) {
  cuda::summarize(cuda::Type::float32, far + 5, anchor.data(), {workspace(), false}, nullptr);
  const char* end = reinterpret_cast<const char*>(workspace()) + cuda::workspace_bytes();
  const cuda::Summary& part = reinterpret_cast<const cuda::Summary*>(end)[-blocks];
  uint64_t fingerprint = 0;
  for (int64_t begin = 0; begin <= far; begin += blocks * cuda::chunk_size) {
    for (int64_t i = begin; i < std::min(begin + cuda::chunk_size, far + 5); ++i) {
      fingerprint += math::fingerprint_term(math::place_at(static_cast<uint64_t>(i)), anchor[i]);
    }
  }
  EXPECT_EQ(part.fingerprint, fingerprint);
  EXPECT_EQ(part.sum_squares, 0 + 1 + 4 + 9 + 16);
}

}  // namespace
}  // namespace outerloop
