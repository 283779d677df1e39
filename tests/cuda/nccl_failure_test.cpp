#include <csignal>
#include <filesystem>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "cuda/nccl.hpp"
#include "support/processes.hpp"
#include "support/temp_folder.hpp"

// Groups over NCCL that fail: as CommError, in time, on all ranks, and the process lives on.

namespace outerloop {
namespace {

using namespace testing;

bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

TEST(NcclFailure, PeerThatNeverComesIsACommErrorThatNamesTheOperation) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto comm = nccl(store, rank, 2, 1s);
    expect_sums(*comm);
    if (rank == 1) {
      std::this_thread::sleep_for(2s);
      return;
    }
    const Tensor flat = on_gpu(rank, 5, 1);
    const auto begin = std::chrono::steady_clock::now();
    const auto message = comm_error([&] { comm->all_reduce_sum(flat).wait(); }, 5s);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 900ms);
    EXPECT_TRUE(says(message, "all_reduce_sum of 20 bytes on rank 0 of 2")) << message;

    const auto again = comm_error([&] { comm->all_reduce_sum(flat).wait(); }, 1s);
    EXPECT_TRUE(says(again, "unusable since an earlier failure")) << again;
    EXPECT_THROW(comm->broadcast(flat, 0), CommError);
    EXPECT_THROW(comm->all_gather(on_gpu(rank, 10, 0).view({2, 5}), flat), CommError);
  });
  forget_reports();
}

/// Of a rank that gave up: the one that comes late does not wait as long again. What was sent before may still serve
/// its first call.
TEST(NcclFailure, IsHeardOfByTheOtherRanks) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto comm = nccl(store, rank, 2, rank == 0 ? 1s : 60s);
    if (rank == 1) std::this_thread::sleep_for(3s);
    const auto call = [&] { comm->all_reduce_sum(on_gpu(rank, 5, 1)).wait(); };
    comm_error([&] { call(), call(); }, 10s);
  });
  forget_reports();
}

/// A call that the ranks make differently. NCCL does not compare them: any result, or none in time.
void expect_end(const std::function<void()>& call) {
  if (stand_in()) {
    comm_error(call, 10s);
    return;
  }
  try {
    call();
  } catch (const CommError&) {
  }
}

TEST(NcclFailure, OfCallsThatDifferEnds) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto sizes = nccl(store, rank, 2, 3s), operations = nccl(store, rank, 2, 3s);
    expect_end([&] { sizes->all_reduce_sum(on_gpu(rank, rank == 0 ? 4 : 4000, 1)).wait(); });
    const Tensor flat = on_gpu(rank, 4, 1);
    expect_end([&] { rank == 0 ? operations->all_reduce_sum(flat).wait() : operations->broadcast(flat, 1).wait(); });
  });
  forget_reports();
}

TEST(NcclFailure, DoesNotKeepANewGroupFromBeingMade) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    auto comm = nccl(store, rank, 2, 1s);
    if (rank == 0) comm_error([&] { comm->all_reduce_sum(on_gpu(rank, 5, 1)).wait(); }, 5s);
    expect_sums(*nccl(store, rank, 2));
  });
  forget_reports();
}

TEST(NcclFailure, RankThatNobodyJoinsIsACommErrorNamingRankAndTime) {
  OUTERLOOP_NEEDS_GPUS(1);
  const auto store = meeting_place();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto message = comm_error([&] { nccl(store, 1, 3, 500ms); }, 10s);
    EXPECT_TRUE(says(message, "rank 1 of 3")) << message;
    EXPECT_TRUE(says(message, "500 ms")) << message;
    EXPECT_TRUE(says(message, "connect_gloo")) << message;
  }
  if (!stand_in() && c10::cuda::device_count() < 3) return;
  on_ranks(3, [&](int rank) { expect_sums(*nccl(store, rank, 3)); });
}

/// A rank of three processes, of which the last is killed.
void survive(const std::filesystem::path& file, int rank) {
  const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(gpu_of(rank)));
  const auto comm = nccl(c10::make_intrusive<c10d::FileStore>(file, 3), rank, 3, 20s);
  expect_sums(*comm);
  if (rank == 2) raise(SIGKILL);
  Pending pending = comm->all_reduce_sum(on_gpu(rank, 5, 1));
  std::this_thread::sleep_for(3s);  // nobody but wait() is told of the failure, nor afterwards
  const auto message = comm_error([&] { pending.wait(); }, 30s);
  EXPECT_TRUE(says(message, "all_reduce_sum")) << message;
  EXPECT_THROW(comm->broadcast(on_gpu(rank, 5, 1), 0), CommError);
  std::this_thread::sleep_for(1s);
  forget_reports();
}

TEST(NcclFailure, OfAKilledProcessIsACommErrorInTheOthers) {
  OUTERLOOP_NEEDS_GPUS(3);
  if (!role().empty()) return survive(std::getenv("OUTERLOOP_TEST_FILE"), role().back() - '0');
  const TempFolder folder;
  std::vector<pid_t> ranks;
  for (const char* name : {"rank 0", "rank 1", "rank 2"}) {
    ranks.push_back(spawn_role(name, {{"OUTERLOOP_TEST_FILE", folder / "store"},
                                      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},  // as torchrun sets it: the end
                                      {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100"}}));  // and soon
  }
  EXPECT_EQ(wait_for(ranks[0]), 0);
  EXPECT_EQ(wait_for(ranks[1]), 0);
  EXPECT_EQ(wait_for(ranks[2]), -SIGKILL);
}

}  // namespace
}  // namespace outerloop
