#include <cstdlib>
#include <map>

#include "comm/nccl_environment.hpp"
#include "comm/port.hpp"
#include "cuda/nccl.hpp"
#include "support/processes.hpp"

// connect_nccl, connect_from_env where there is a GPU, and the environment.

namespace outerloop {
namespace {

using namespace testing;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "not set";
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(NcclEnvironment, IsSetForAWhileAndThenAsBefore) {
  unsetenv("TORCH_NCCL_BLOCKING_WAIT");
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
  {
    const comm::NcclEnvironment environment;
    EXPECT_EQ(variable("TORCH_NCCL_BLOCKING_WAIT"), "1");
    EXPECT_EQ(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
  }
  EXPECT_EQ(variable("TORCH_NCCL_BLOCKING_WAIT"), "not set");
  EXPECT_EQ(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
}

TEST(ConnectNccl, LeavesTheEnvironmentAsItWas) {
  OUTERLOOP_NEEDS_GPUS(2);
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) { expect_sums(*nccl(store, rank, 2)); });
  EXPECT_EQ(variable("TORCH_NCCL_BLOCKING_WAIT"), "not set");
  EXPECT_EQ(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
}

TEST(ConnectNccl, RefusesAGpuThatIsNotThere) {
  const int count = c10::cuda::device_count();
  for (const int gpu : {-1, count}) {
    const auto message = refusal([&] { connect_nccl({}, gpu); });
    EXPECT_TRUE(says(message, "cuda_device is " + std::to_string(gpu)));
    EXPECT_TRUE(says(message, std::to_string(count) + " GPUs"));
  }
}

TEST(ConnectNccl, OfOneIsAlone) {
  OUTERLOOP_NEEDS_GPUS(1);
  const auto comm = connect_nccl({}, 0);
  EXPECT_EQ(comm->size(), 1);
  expect_sums(*comm);
}

TEST(ConnectNccl, MeetsAtRankZero) {
  OUTERLOOP_NEEDS_GPUS(2);
  const ReservedPort port;
  on_ranks(2, [&](int rank) {
    const Rendezvous at{.rank = rank, .size = 2, .port = port, .timeout = 60s};
    const auto first = connect_nccl(at, gpu_of(rank)), second = connect_nccl(at, gpu_of(rank));
    expect_sums(*second);
    expect_sums(*first);
  });
}

std::map<std::string, std::string> variables(int rank, uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

void peer() {
  const auto comm = connect_from_env(60s);
  EXPECT_EQ(comm->device(), at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_of(comm->rank()))));
  const c10::cuda::CUDAGuard device(comm->device());
  expect_sums(*comm);
}

TEST(ConnectFromEnvWithGpus, IsOverNcclOnTheGpuOfTheRank) {
  OUTERLOOP_NEEDS_GPUS(2);
  if (role() == "peer") return peer();
  const ReservedPort port;
  for (const bool with_local_rank : {false, true}) {
    std::vector<pid_t> ranks;
    for (const int rank : {0, 1}) {
      auto more = variables(rank, port);
      if (with_local_rank) more["LOCAL_RANK"] = std::to_string(gpu_of(rank));
      ranks.push_back(spawn_role("peer", more));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(wait_for(rank), 0);
  }
}

TEST(ConnectFromEnvWithGpus, NamesALocalRankWithoutAGpu) {
  OUTERLOOP_NEEDS_GPUS(1);
  if (role() == "peer") {
    const auto message = refusal([] { connect_from_env(1s); });
    EXPECT_TRUE(says(message, "LOCAL_RANK is 77"));
    EXPECT_TRUE(says(message, std::to_string(c10::cuda::device_count()) + " GPUs"));
    return;
  }
  auto more = variables(0, 29500);
  more["LOCAL_RANK"] = "77";
  EXPECT_EQ(wait_for(spawn_role("peer", more)), 0);
}

}  // namespace
}  // namespace outerloop
