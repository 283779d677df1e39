#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <outerloop/communicator.hpp>
#include <outerloop/error.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl.hpp"
#include "support/ranks.hpp"

// Of a stand-in for the CUDA runtime and NCCL; null on a GPU.
extern "C" {
__attribute__((weak)) int ptxsim_take_errors(void);
__attribute__((weak)) void ptxncl_delay(int ms);
__attribute__((weak)) int ptxncl_communicators(uint64_t* created, uint64_t* destroyed, uint64_t* aborted);
}

/// Ranks over NCCL in tests. Data comes from the CPU by copies and nothing is computed on the GPU, so that these also
/// run on a stand-in for the CUDA runtime, where ranks may share a device.

namespace outerloop::testing {

using namespace std::chrono_literals;

inline bool stand_in() { return ptxncl_communicators != nullptr; }

/// Skips the test on a machine with too few GPUs: NCCL wants one for each rank.
#define OUTERLOOP_NEEDS_GPUS(ranks)                                                     \
  if (!stand_in() && c10::cuda::device_count() < (ranks)) {                             \
    GTEST_SKIP() << "needs " << (ranks) << " GPUs, has " << +c10::cuda::device_count(); \
  }

inline int gpu_of(int rank) { return rank % std::max<int>(1, c10::cuda::device_count()); }

/// The environment of a process that sees no GPU, on a machine with some and on a stand-in.
inline const std::map<std::string, std::string> no_gpus{{"CUDA_VISIBLE_DEVICES", ""}, {"PTXSIM_DEVICES", "0"}};

/// What a stand-in reports of peers that never came, where a test means it.
inline void forget_reports() {
  if (ptxsim_take_errors) ptxsim_take_errors();
}

/// Runs body(rank) on a thread for each rank, with a GPU and a stream of its own, as processes have. The first
/// exception (by rank) is rethrown after all have ended.
template <class Body>
void on_ranks(int size, Body body) {
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(gpu_of(rank)));
        const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// A tensor with `count` times `value` on the rank's GPU.
inline Tensor on_gpu(int rank, int64_t count, float value) {
  return torch::full({count}, value).to(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_of(rank))));
}

inline bool holds(const Tensor& gpu, const Tensor& expected) { return torch::equal(gpu.cpu(), expected); }

/// All ranks can hear each other.
inline void expect_sums(Communicator& comm, int64_t count = 1000) {
  const Tensor flat = on_gpu(comm.rank(), count, comm.rank() + 1.0f);
  comm.all_reduce_sum(flat).wait();
  EXPECT_TRUE(holds(flat, torch::full({count}, comm.size() * (comm.size() + 1) / 2.0f)));
}

/// What `body` throws, which must be a CommError that comes in time.
inline std::string comm_error(const std::function<void()>& body, std::chrono::milliseconds at_most) {
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, at_most) << message;
  return message;
}

/// A store at which ranks that are threads meet.
inline c10::intrusive_ptr<c10d::Store> meeting_place() { return c10::make_intrusive<c10d::HashStore>(); }

inline std::shared_ptr<Communicator> nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                          std::chrono::milliseconds timeout = 60s) {
  return comm::nccl_over(store, {.rank = rank, .size = size, .timeout = timeout, .lanes = usual_lanes()}, gpu_of(rank));
}

}  // namespace outerloop::testing
