#include <cstdlib>
#include <map>
#include <optional>

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

using Variables = std::map<std::string, std::string>;

/// Spawns two ranks as torchrun would, with `more` on rank 1, each of which runs the current test as a "peer".
void expect_peers_agree(const Variables& more = {}) {
  const ReservedPort port;
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1}) {
    Variables variables{{"RANK", std::to_string(rank)},
                        {"WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(port)}};
    if (rank == 1) variables.insert(more.begin(), more.end());
    ranks.push_back(spawn_role("peer", variables));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(wait_for(rank), 0);
}

/// Connects, with LOCAL_RANK as given, to a group over NCCL on that GPU, or over Gloo. Keep it: where it was, the next
/// one meets, and the store goes with it.
std::shared_ptr<Communicator> expect_group(std::optional<int> local_rank, std::optional<int> gpu) {
  local_rank ? setenv("LOCAL_RANK", std::to_string(*local_rank).c_str(), 1) : unsetenv("LOCAL_RANK");
  const auto comm = connect_from_env(60s);
  const at::Device expected = gpu ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*gpu)) : at::Device(at::kCPU);
  EXPECT_EQ(comm->device(), expected);
  const Tensor flat = torch::full({3}, comm->rank() + 1.0f).to(comm->device());
  comm->all_reduce_sum(flat).wait();
  EXPECT_TRUE(holds(flat, torch::full({3}, 3.0f)));
  return comm;
}

TEST(ConnectFromEnvWithGpus, IsOverNcclWhereEachRankHasAGpuOfItsOwn) {
  OUTERLOOP_NEEDS_GPUS(1);
  if (role() != "peer") return expect_peers_agree();
  const int rank = std::atoi(std::getenv("RANK")), count = c10::cuda::device_count();
  std::vector<std::shared_ptr<Communicator>> groups;
  if (stand_in() || count > 1) groups.push_back(expect_group(gpu_of(rank), gpu_of(rank)));
  groups.push_back(expect_group(rank * count, std::nullopt));  // number `count` is not there
  groups.push_back(expect_group(std::nullopt, count > 1 ? std::optional(rank) : std::nullopt));
}

TEST(ConnectFromEnvWithGpus, IsOverGlooIfARankSeesNone) {
  OUTERLOOP_NEEDS_GPUS(1);
  if (role() != "peer") return expect_peers_agree(no_gpus);
  EXPECT_EQ(c10::cuda::device_count() > 0, std::string(std::getenv("RANK")) == "0");
  const auto first = expect_group(0, std::nullopt), second = expect_group(std::nullopt, std::nullopt);
}

}  // namespace
}  // namespace outerloop
