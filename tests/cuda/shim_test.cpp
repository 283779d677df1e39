#include "shim/fibres.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <cub/block/block_reduce.cuh>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer asks whether to keep a report to itself. It reports a pair of places once, so each kernel races once.
namespace {
constexpr bool sanitizes_threads = true;
int expected_races = -1;  // -1: none are
}  // namespace
namespace __tsan {
class ReportDesc;
bool OnReport(const ReportDesc*, bool suppressed) {
  if (expected_races < 0) return suppressed;
  ++expected_races;
  return true;
}
}  // namespace __tsan
#else
namespace {
constexpr bool sanitizes_threads = false;
}
#endif

namespace outerloop::shim {
namespace {

constexpr int threads = 256;
constexpr unsigned all = 0xffffffff;

template <class... Parameters, class... Arguments>
cudaError_t launch(int blocks, int block, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(block);
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/// A test for each schedule.
class Schedules : public ::testing::TestWithParam<Schedule> {
 public:
  Schedules() { schedule(GetParam(), 7); }
  ~Schedules() override { schedule(Schedule::forward); }
};

std::string name(const ::testing::TestParamInfo<Schedule>& info) {
  static constexpr const char* names[] = {"forward", "reverse", "random"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Shim, Schedules, ::testing::Values(Schedule::forward, Schedule::reverse, Schedule::random),
                         name);

class Shim : public ::testing::Test {
 public:
  ~Shim() override { schedule(Schedule::forward); }
};

/// Whether `wrong` is true in one schedule at least; under ThreadSanitizer: whether it saw a race.
bool caught(const std::function<bool()>& wrong) {
  bool found = false;
#if defined(__SANITIZE_THREAD__)
  expected_races = 0;
#endif
  for (const Schedule order : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    schedule(order, 3);
    found |= wrong();
  }
#if defined(__SANITIZE_THREAD__)
  found = expected_races > 0;
  expected_races = -1;
#endif
  return found;
}

/// What the launch throws; empty if nothing.
std::string fault_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

#define EXPECT_FAULT(launch, part)                                       \
  do {                                                                   \
    const std::string what = fault_of([&] { launch; });                  \
    EXPECT_NE(what.find(part), std::string::npos) << '"' << what << '"'; \
  } while (false)

// ---- reductions through shared memory

/// Without `barrier` in the loop it reads what another warp has not written yet.
template <bool barrier>
__global__ void reduce_shared(const int* in, int* out) {
  __shared__ int sums[threads];
  const unsigned t = threadIdx.x;
  sums[t] = in[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (t < half) sums[t] += sums[t + half];
    if (barrier) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sums[0];
}

std::vector<int> numbers(std::size_t count) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 1);
  return result;
}

TEST_P(Schedules, ReducesABlock) {
  const auto in = numbers(3 * threads);
  std::vector<int> out(3);
  ASSERT_EQ(launch(3, threads, reduce_shared<true>, in.data(), out.data()), cudaSuccess);
  for (int block = 0; block < 3; ++block) {
    const auto* begin = in.data() + block * threads;
    EXPECT_EQ(out[block], std::accumulate(begin, begin + threads, 0));
  }
}

TEST_F(Shim, CatchesAMissingBarrier) {
  const auto in = numbers(threads);
  EXPECT_TRUE(caught([&] {
    int out = 0;
    launch(1, threads, reduce_shared<false>, in.data(), &out);
    return out != std::accumulate(in.begin(), in.end(), 0);
  }));
}

/// Lanes of a warp give a value to each other through shared memory.
template <bool barrier>
__global__ void swap_neighbours(int* values) {
  __shared__ int shared[warpSize];
  shared[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncwarp();
  values[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST_P(Schedules, OrdersAWarp) {
  auto values = numbers(warpSize);
  launch(1, warpSize, swap_neighbours<true>, values.data());
  for (int i = 0; i < warpSize; ++i) EXPECT_EQ(values[i], (i ^ 1) + 1);
}

TEST_F(Shim, CatchesAMissingWarpBarrier) {
  EXPECT_TRUE(caught([] {
    auto values = numbers(warpSize);
    launch(1, warpSize, swap_neighbours<false>, values.data());
    return values[0] != 2 || values[1] != 1;
  }));
}

#if defined(__SANITIZE_THREAD__)
/// A shuffle brings lanes together, but does not order their memory: in lockstep this works, under TSan it must not.
__global__ void swap_after_shuffle(int* values) {
  __shared__ int shared[warpSize];
  shared[threadIdx.x] = values[threadIdx.x];
  __shfl_xor_sync(all, 0, 1);
  values[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST_F(Shim, AShuffleOrdersNoMemory) {
  EXPECT_TRUE(caught([] {
    auto values = numbers(warpSize);
    launch(1, warpSize, swap_after_shuffle, values.data());
    return false;
  }));
}
#endif

// ---- warp operations

template <class T, int start>
__global__ void reduce_warp(const T* in, T* out) {
  T sum = in[threadIdx.x];
  for (int distance = start; distance > 0; distance /= 2) sum += __shfl_down_sync(all, sum, distance);
  if (threadIdx.x == 0) *out = sum;
}

template <class T>
T warp_sum(bool half = false) {
  std::vector<T> in(warpSize);
  std::iota(in.begin(), in.end(), T(1));
  T out{};
  launch(1, warpSize, half ? reduce_warp<T, 8> : reduce_warp<T, 16>, in.data(), &out);
  return out;
}

TEST_P(Schedules, ShufflesEveryType) {
  EXPECT_EQ(warp_sum<int>(), 528);
  EXPECT_EQ(warp_sum<unsigned>(), 528u);
  EXPECT_EQ(warp_sum<long long>(), 528);
  EXPECT_EQ(warp_sum<unsigned long long>(), 528u);
  EXPECT_EQ(warp_sum<float>(), 528.f);
  EXPECT_EQ(warp_sum<double>(), 528.);
}

TEST_P(Schedules, AHalfReductionIsWrong) { EXPECT_NE(warp_sum<float>(true), 528.f); }

__global__ void warp_operations(int* out) {
  const int lane = threadIdx.x;
  int* mine = out + 8 * lane;
  mine[0] = __shfl_sync(all, lane, 5);
  mine[1] = __shfl_sync(all, lane, 3, 8);
  mine[2] = __shfl_down_sync(all, lane, 4u, 8);
  mine[3] = __shfl_xor_sync(all, lane, 3);
  mine[4] = static_cast<int>(__ballot_sync(all, lane % 2));
  mine[5] = __any_sync(all, lane == 9);
  mine[6] = __all_sync(all, lane != 9);
  if (lane < 16) mine[7] = __all_sync(0xffff, lane < 16);
}

TEST_P(Schedules, WarpOperationsAsCudaHasThem) {
  std::vector<int> out(8 * warpSize);
  launch(1, warpSize, warp_operations, out.data());
  for (int lane = 0; lane < warpSize; ++lane) {
    const int expected[] = {
        5, lane / 8 * 8 + 3, lane % 8 < 4 ? lane + 4 : lane, lane ^ 3, static_cast<int>(0xaaaaaaaa), 1, 0, lane < 16};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(out[8 * lane + i], expected[i]) << lane << " " << i;
  }
}

__global__ void shuffle_after_exit() {
  if (threadIdx.x == 31) return;
  __shfl_down_sync(all, 1, 16);
}

__global__ void shuffle_elsewhere() {
  if (threadIdx.x < 16) {
    __shfl_down_sync(all, 1, 16);
  } else {
    __syncthreads();
  }
}

__global__ void shuffle_without_itself() { __shfl_down_sync(1, 1, 16); }

TEST_P(Schedules, AShuffleWithoutAllItsLanesIsAFault) {
  EXPECT_FAULT(launch(1, 32, shuffle_after_exit), "threads 31 to 31 ended");
  EXPECT_FAULT(launch(1, 32, shuffle_elsewhere), "threads 16 to 31 wait for __syncthreads");
  EXPECT_FAULT(launch(1, 32, shuffle_without_itself), "mask without the lane itself");
  EXPECT_FAULT(launch(1, 48, reduce_warp<int, 1>, numbers(48).data(), numbers(1).data()), "stuck");
  EXPECT_EQ(warp_sum<int>(), 528) << "after a fault";
}

// ---- barriers of the block

__global__ void barrier_after_exit() {
  if (threadIdx.x < 64) return;
  __syncthreads();
}

__global__ void two_barriers() {
  if (threadIdx.x % 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_P(Schedules, ADivergentBarrierIsAFault) {
  EXPECT_FAULT(launch(2, threads, barrier_after_exit), "threads 0 to 63 ended; threads 64 to 255 wait");
  EXPECT_FAULT(launch(2, threads, two_barriers), "is stuck: threads 0 to 0 wait for __syncthreads");
}

// ---- loads, stores and their counters

__global__ void copy(const uint4* in, uint4* out, int count) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(count);
       i += gridDim.x * blockDim.x)
    __stcs(out + i, __ldcs(in + i));
}

__global__ void scale(const float* in, float* out, int count) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(count);
       i += gridDim.x * blockDim.x)
    __stcs(out + i, 2 * __ldcs(in + i));
}

__global__ void narrow(const unsigned short* in, double* out) {
  __stcg(out + threadIdx.x, 2. * __ldg(in + threadIdx.x));
}

TEST_P(Schedules, CountsAccesses) {
  alignas(16) static unsigned in[4 * 1000], out[4 * 1000];
  std::iota(std::begin(in), std::end(in), 0);
  reset_counters();
  launch(2, threads, copy, reinterpret_cast<uint4*>(in), reinterpret_cast<uint4*>(out), 1000);
  EXPECT_TRUE(std::equal(std::begin(in), std::end(in), std::begin(out)));
  std::vector<unsigned short> shorts(32, 3);
  std::vector<double> doubles(32);
  launch(1, 32, narrow, shorts.data(), doubles.data());
  EXPECT_EQ(doubles, std::vector<double>(32, 6.));
  const Counters seen = counters();
  EXPECT_EQ(seen.launches, 2u);
  EXPECT_EQ(seen.bytes_loaded, 16000u + 64);
  EXPECT_EQ(seen.bytes_stored, 16000u + 256);
  EXPECT_EQ(seen.accesses, 2000u + 64);
  EXPECT_EQ(seen.wide_accesses, 2000u);
}

TEST_P(Schedules, AMisalignedAccessIsAFault) {
  alignas(16) static unsigned in[4 * 32], out[4 * 32];
  EXPECT_FAULT(launch(1, 32, copy, reinterpret_cast<const uint4*>(in + 1), reinterpret_cast<uint4*>(out), 8),
               "of block (0, 0, 0): an access of 16 bytes to address 0x");
  EXPECT_FAULT(launch(1, 32, copy, reinterpret_cast<const uint4*>(in), reinterpret_cast<uint4*>(out + 2), 8),
               "an access of 16 bytes");
}

/// Through __stcs and __ldcs: what one thread stores another one loads.
template <bool barrier>
__global__ void pass_on(uint4* values, uint4* out) {
  const unsigned t = threadIdx.x;
  __stcs(values + t, make_uint4(t + 1, 2, 3, 4));
  if (barrier) __syncthreads();
  __stcs(out + t, __ldcs(values + (t ^ 32)));
}

template <bool barrier>
bool passed_on() {
  std::vector<uint4> values(64), out(64);
  launch(1, 64, pass_on<barrier>, values.data(), out.data());
  for (unsigned t = 0; t < 64; ++t)
    if (out[t].x != (t ^ 32) + 1) return false;
  return true;
}

TEST_P(Schedules, PassesOnThroughGlobalMemory) { EXPECT_TRUE(passed_on<true>()); }

TEST_F(Shim, CatchesAMissingBarrierForGlobalMemory) {
  EXPECT_TRUE(caught([] { return !passed_on<false>(); }));
}

// ---- the last block sums up

__global__ void sum_all(const int* in, int count, long long* partial, unsigned* done, long long* out) {
  using Reduce = cub::BlockReduce<long long, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ bool last;
  long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += in[i];
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  sum = threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0;
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

TEST_P(Schedules, TheLastBlockSumsUp) {
  const auto in = numbers(10'000);
  std::vector<long long> partial(13);
  unsigned done = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    long long out = 0;
    launch(13, threads, sum_all, in.data(), 10'000, partial.data(), &done, &out);
    EXPECT_EQ(out, 50'005'000);
    EXPECT_EQ(done, 0u);
  }
}

__global__ void count_up(int* a, unsigned* b, unsigned long long* c) {
  atomicAdd(a, -1);
  atomicAdd(b, 2);
  atomicAdd(c, 3);
}

TEST_P(Schedules, AddsAtomically) {
  int a = 0;
  unsigned b = 0;
  unsigned long long c = 0;
  launch(3, 100, count_up, &a, &b, &c);
  EXPECT_EQ(a, -300);
  EXPECT_EQ(b, 600u);
  EXPECT_EQ(c, 900u);
}

// ---- cub::BlockReduce

struct Moments {
  double sum, squares;
  unsigned count, maximum;
};
static_assert(sizeof(Moments) == 24);

template <int size, bool barrier>
__global__ void moments(Moments* out) {
  using Reduce = cub::BlockReduce<Moments, size>;
  __shared__ typename Reduce::TempStorage storage;
  const auto both = [](const Moments& a, const Moments& b) {
    return Moments{a.sum + b.sum, a.squares + b.squares, a.count + b.count, std::max(a.maximum, b.maximum)};
  };
  for (int round = 0; round < 2; ++round) {
    const double value = threadIdx.x + round;
    const Moments result = Reduce(storage).Reduce(Moments{value, value * value, 1, threadIdx.x}, both);
    if (threadIdx.x == 0) out[round] = result;
    if (threadIdx.x == 1) out[2] = result;
    if (barrier) __syncthreads();
  }
}

template <int size, bool barrier = true>
bool moments_right(int block = size) {
  Moments out[3];
  launch(1, block, moments<size, barrier>, out);
  bool right = true;
  for (int round = 0; round < 2; ++round) {
    double sum = 0, squares = 0;
    for (int i = 0; i < size; ++i) sum += i + round, squares += (i + round) * (i + round);
    right &= out[round].sum == sum && out[round].squares == squares && out[round].count == size &&
             out[round].maximum == size - 1;
  }
  return right && out[2].count == 0xffffffff;  // of use in thread 0 only
}

TEST_P(Schedules, BlockReduce) {
  EXPECT_TRUE(moments_right<256>());
  EXPECT_TRUE(moments_right<96>());
  EXPECT_TRUE(moments_right<80>()) << "the last warp is not full";
  EXPECT_TRUE(moments_right<20>());
  EXPECT_FAULT(moments_right<128>(256), "cub::BlockReduce for 128 threads in a block of 256");
}

TEST_F(Shim, CatchesStorageOfBlockReduceUsedAgainTooEarly) {
  EXPECT_TRUE(caught([] { return !moments_right<64, false>(); }));
}

// ---- the host's side

__global__ void nothing() {}

__global__ void indices(dim3* out) {
  const dim3 at(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
                blockIdx.z * blockDim.z + threadIdx.z);
  out[(at.z * gridDim.y * blockDim.y + at.y) * gridDim.x * blockDim.x + at.x] = at;
}

TEST_P(Schedules, ThreeDimensions) {
  std::vector<dim3> out(6 * 8 * 4, dim3(99, 99, 99));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2, 4, 1);
  config.blockDim = dim3(3, 2, 4);
  ASSERT_EQ(cudaLaunchKernelEx(&config, indices, out.data()), cudaSuccess);
  for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ((out[i].z * 8 + out[i].y) * 6 + out[i].x, i);
}

TEST_F(Shim, Errors) {
  EXPECT_EQ(launch(0, 32, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument");
  int device = -1, processors = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), cudaSuccess);
  EXPECT_EQ(processors, 2);
  multiprocessors(5);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  EXPECT_EQ(processors, 5);
  multiprocessors(2);
  EXPECT_THROW(__syncthreads(), Fault) << "on the host";
}

TEST_F(Shim, FailsWhereATestAsksForIt) {
  int device = 0;
  fail(cudaErrorInvalidValue, 1);
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  reset_counters();
  EXPECT_EQ(launch(1, 32, nothing), cudaErrorInvalidValue);
  EXPECT_EQ(counters().launches, 0u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(launch(1, 32, nothing), cudaSuccess);
}

TEST_P(Schedules, LeavesOutBlocksWhereATestAsksForIt) {
  const auto in = numbers(3 * threads);
  std::vector<int> out(3);
  run_blocks_before(2);
  launch(3, threads, reduce_shared<true>, in.data(), out.data());
  run_blocks_before(0);
  EXPECT_NE(out[0], 0);
  EXPECT_NE(out[1], 0);
  EXPECT_EQ(out[2], 0);
}

TEST_F(Shim, CopiesAndFills) {
  auto from = numbers(5);
  std::vector<int> to(5);
  EXPECT_EQ(cudaMemcpyAsync(to.data(), from.data(), 20, cudaMemcpyDefault, nullptr), cudaSuccess);
  EXPECT_EQ(to, from);
  EXPECT_EQ(cudaMemsetAsync(to.data(), 0, 20, nullptr), cudaSuccess);
  EXPECT_EQ(to, std::vector<int>(5));
}

TEST_P(Schedules, SeveralOsThreadsLaunch) {
  const auto in = numbers(64 * 64);
  std::vector<long long> sums(3);
  std::vector<std::thread> hosts;
  for (auto& sum : sums) {
    hosts.emplace_back([&] {
      long long partial[4];
      unsigned done = 0;
      for (int i = 0; i < 5; ++i) launch(4, threads, sum_all, in.data(), 64 * 64, partial, &done, &sum);
    });
  }
  for (auto& host : hosts) host.join();
  EXPECT_EQ(sums, std::vector<long long>(3, 64 * 64 * (64 * 64 + 1) / 2));
}

#if defined(__SANITIZE_ADDRESS__)
__global__ void beyond_shared(float* out) {
  __shared__ float shared[32];
  shared[threadIdx.x] = 1;
  __syncthreads();
  *out = shared[0];
}

TEST_F(Shim, AddressSanitizerSeesKernels) {
  const std::vector<float> in(31);
  std::vector<float> out(32);
  EXPECT_DEATH(launch(1, 32, scale, in.data(), out.data(), 32), "heap-buffer-overflow");
  EXPECT_DEATH(launch(1, 64, beyond_shared, out.data()), "out of bounds");
}
#endif

// ---- speed

template <class Work>
double seconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(Shim, ManyLaunches) {
  const int launches = sanitizes_threads ? 50 : 1000;
  const auto in = numbers(threads);
  const double time = seconds([&] {
    for (int i = 0; i < launches; ++i) {
      int out = 0;
      launch(1, threads, reduce_shared<true>, in.data(), &out);
      ASSERT_EQ(out, threads * (threads + 1) / 2);
    }
  });
  std::cout << launches / time << " launches/s of a reduction by " << threads << " threads\n";
}

TEST_F(Shim, ManyElements) {
  constexpr int count = 4'000'000;
  std::vector<float> in(count, 1.5f), out(count);
  const double time = seconds([&] { launch(16, threads, scale, in.data(), out.data(), count); });
  EXPECT_EQ(std::count(out.begin(), out.end(), 3.f), count);
  std::cout << count / time / 1e6 << " M elements/s\n";
}

}  // namespace
}  // namespace outerloop::shim
