#include "cuda/nccl.hpp"

#include <outerloop/c10d.hpp>
#include <outerloop/outerloop.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <filesystem>
#include <iterator>

// Groups over NCCL that work: collectives, streams, other groups beside them, and in which order they may go.

namespace outerloop {
namespace {

using namespace testing;

TEST(Nccl, SumsGathersAndBroadcasts) {
  for (const int size : {2, 3}) {
    OUTERLOOP_NEEDS_GPUS(size);
    const auto store = meeting_place();
    on_ranks(size, [&](int rank) {
      const auto comm = nccl(store, rank, size);
      EXPECT_EQ(comm->rank(), rank);
      EXPECT_EQ(comm->size(), size);
      EXPECT_EQ(comm->device(), at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_of(rank))));
      for (const int64_t count : {1, 1000, 100'003}) expect_sums(*comm, count);

      const Tensor rows = on_gpu(rank, size * 5, -1).view({size, 5});
      comm->all_gather(rows, on_gpu(rank, 5, rank + 1.0f)).wait();
      for (int other = 0; other < size; ++other) EXPECT_TRUE(holds(rows[other], torch::full({5}, other + 1.0f)));

      for (int root = 0; root < size; ++root) {
        const Tensor flat = on_gpu(rank, 7, rank + 1.0f);
        comm->broadcast(flat, root).wait();
        EXPECT_TRUE(holds(flat, torch::full({7}, root + 1.0f)));
      }
    });
  }
}

TEST(Nccl, ReducesBytesAndNothing) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto comm = nccl(store, rank, 2);
    const Tensor mine = torch::full({3}, rank + 1, at::kByte).to(comm->device());
    const Tensor rows = torch::full({2, 3}, 9, at::kByte).to(comm->device());
    comm->all_gather(rows, mine).wait();
    EXPECT_TRUE(holds(rows[1], torch::full({3}, 2, at::kByte)));
    comm->all_reduce_sum(on_gpu(rank, 0, 0)).wait();
  });
}

/// wait() is over when the reduction is: whoever reads the result then needs to know of no stream.
TEST(Nccl, ResultIsThereAfterWaitForAnyStream) {
  OUTERLOOP_NEEDS_GPUS(2);
  if (ptxncl_delay) ptxncl_delay(200);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto comm = nccl(store, rank, 2);
    const Tensor flat = on_gpu(rank, 1000, rank + 1.0f);
    comm->all_reduce_sum(flat).wait();
    const c10::cuda::CUDAStreamGuard another(c10::cuda::getStreamFromPool());
    EXPECT_TRUE(holds(flat, torch::full({1000}, 3.0f)));
  });
  if (ptxncl_delay) ptxncl_delay(0);
}

/// What the current stream was given before the collective is in its input.
TEST(Nccl, ComesAfterTheCurrentStream) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto comm = nccl(store, rank, 2);
    const Tensor source = on_gpu(rank, 1'000'000, rank + 1.0f), flat = on_gpu(rank, 1'000'000, 0);
    for (int i = 0; i < 3; ++i) {
      flat.copy_(source, /*non_blocking=*/true);
      comm->all_reduce_sum(flat).wait();
      EXPECT_TRUE(holds(flat, torch::full({1'000'000}, 3.0f)));
    }
  });
}

TEST(Nccl, PendingMayOutliveItsGroup) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    auto comm = nccl(store, rank, 2);
    const Tensor flat = on_gpu(rank, 1000, rank + 1.0f);
    Pending pending = comm->all_reduce_sum(flat);
    comm.reset();
    pending.wait();
    EXPECT_TRUE(holds(flat, torch::full({1000}, 3.0f)));
  });
}

TEST(Nccl, GroupMayBeOneOfSeveralOverTheSameStore) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto first = nccl(store, rank, 2), second = nccl(store, rank, 2);
    expect_sums(*second);
    expect_sums(*first);
    expect_sums(*second);
  });
}

/// As a user builds one.
c10::intrusive_ptr<c10d::ProcessGroup> by_hand(c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
  store = c10::make_intrusive<c10d::PrefixStore>("inner", store);
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  return group;
}

TEST(Nccl, GroupWorksBesideAUsersOwn) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto inner = by_hand(store, rank, 2);
    const auto outer = nccl(store, rank, 2);
    for (int step = 0; step < 6; ++step) {
      std::vector<Tensor> gradient{on_gpu(rank, 1000, rank + 1.0f)};
      inner->allreduce(gradient)->wait();
      if (step % 2 == 1) {
        outer->all_reduce_sum(gradient[0]).wait();
        EXPECT_TRUE(holds(gradient[0], torch::full({1000}, 6.0f)));
      }
    }
    inner->shutdown();
  });
}

TEST(Nccl, FromC10dSharesAGroupBuiltByHand) {
  OUTERLOOP_NEEDS_GPUS(2);
  if (ptxncl_delay) ptxncl_delay(100);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    const auto group = by_hand(store, rank, 2);
    {
      const auto comm = from_c10d(group, at::kCUDA);
      EXPECT_EQ(comm->device().index(), gpu_of(rank));  // the current one
      expect_sums(*comm);
      const Tensor flat = on_gpu(rank, 1000, rank + 1.0f);
      comm->all_reduce_sum(flat).wait();
      const c10::cuda::CUDAStreamGuard another(c10::cuda::getStreamFromPool());
      EXPECT_TRUE(holds(flat, torch::full({1000}, 3.0f)));
    }
    std::vector<Tensor> tensors{on_gpu(rank, 10, rank + 1.0f)};  // its other users go on using it
    group->allreduce(tensors)->wait();
    EXPECT_TRUE(holds(tensors[0], torch::full({10}, 3.0f)));
    group->shutdown();
  });
  if (ptxncl_delay) ptxncl_delay(0);
}

TEST(Nccl, GroupsMayGoInAnyOrder) {
  OUTERLOOP_NEEDS_GPUS(2);
  for (const int first_to_go : {0, 1}) {  // on rank 1; on rank 0 it is number 0
    const auto begin = std::chrono::steady_clock::now();
    const auto store = meeting_place();
    on_ranks(2, [&](int rank) {
      std::vector<std::shared_ptr<Communicator>> groups{nccl(store, rank, 2), nccl(store, rank, 2)};
      for (const auto& group : groups) expect_sums(*group);
      const int first = rank == 0 ? 0 : first_to_go;
      groups[first].reset();
      expect_sums(*nccl(store, rank, 2));  // where all are again
      groups[1 - first].reset();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s) << first_to_go;
  }
}

/// Threads of this process.
int64_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST(Nccl, GroupsThatWentLeaveNothingBehind) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  const auto once = [&] { on_ranks(2, [&](int rank) { expect_sums(*nccl(store, rank, 2)); }); };
  once();  // CUDA and NCCL start threads that stay
  const int64_t before = threads();
  uint64_t created = 0, destroyed = 0, aborted = 0;
  if (ptxncl_communicators) ptxncl_communicators(&created, &destroyed, &aborted);
  const uint64_t aborted_before = aborted;
  for (int i = 0; i < 3; ++i) once();
  for (int i = 0; i < 100 && threads() > before; ++i)
    std::this_thread::sleep_for(10ms);  // a thread's end takes a while
  EXPECT_LE(threads(), before);
  if (ptxncl_communicators) {
    ptxncl_communicators(&created, &destroyed, &aborted);
    EXPECT_EQ(aborted, aborted_before);  // all in peace
  }
}

/// Rank 0 lets go right after its last collective, long before rank 1 takes part in it.
TEST(Nccl, GroupThatIsLetGoOfStaysForThoseWhoStillNeedIt) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  on_ranks(2, [&](int rank) {
    auto comm = nccl(store, rank, 2);
    const Tensor flat = on_gpu(rank, 1000, rank + 1.0f);
    expect_sums(*comm);
    if (rank == 1) std::this_thread::sleep_for(4s);  // longer than a group that goes is waited for
    comm->broadcast(flat, 0).wait();
    comm.reset();
    EXPECT_TRUE(holds(flat, torch::full({1000}, 1.0f)));
  });
}

TEST(Nccl, GroupMayGoBeforeItsOptimizerAndAfter) {
  OUTERLOOP_NEEDS_GPUS(2);
  const auto store = meeting_place();
  for (const bool before : {true, false}) {
    on_ranks(2, [&](int rank) {
      auto comm = nccl(store, rank, 2);
      Tensor p = on_gpu(rank, 100, rank + 1.0f).set_requires_grad(true);  // no gradient: the inner step does nothing
      {
        LocalSGDOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, {.sync_every = 1});
        if (before) comm.reset();
        optimizer.step();
        EXPECT_TRUE(holds(p.detach(), torch::full({100}, 1.0f)));  // rank 0's, at the start
        EXPECT_EQ(optimizer.rounds(), 1);
      }
      if (comm) expect_sums(*comm);
    });
  }
}

}  // namespace
}  // namespace outerloop
