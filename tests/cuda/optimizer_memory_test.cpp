#include <c10/cuda/CUDACachingAllocator.h>

#include <sstream>

#include "cuda/replicas.hpp"

// What the optimizers take of a GPU's memory.

namespace outerloop {
namespace {

using namespace testing;

constexpr int64_t numel = 100'000, vector_bytes = 4 * numel;
constexpr int64_t small = 256 * 1024;  ///< tables and sums

namespace allocator = c10::cuda::CUDACachingAllocator;
constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

auto stats() { return allocator::getDeviceStats(0); }

/// Bytes asked for on GPU 0 at most at any time while body() runs, beside those there were before.
template <class Body>
int64_t most_bytes(const Body& body) {
  const int64_t before = stats().requested_bytes[all].current;
  allocator::resetPeakStats(0);
  body();
  return stats().requested_bytes[all].peak - before;
}

int ranks_on_gpu_0(int ranks) {
  int count = 0;
  for (int rank = 0; rank < ranks; ++rank) count += gpu_of(rank) == 0;
  return count;
}

/// For each rank on GPU 0: three rounds of DiLoCo, with one parameter of `numel` elements, which is not counted.
int64_t bytes_of_rounds(Over over, std::optional<at::Device> anchor_device) {
  std::vector<Tensor> params;
  for (int rank = 0; rank < 2; ++rank) {
    params.push_back(scripted_values({numel}, at::kFloat, rank, 0, 0).to(gpu(rank)).set_requires_grad(true));
  }
  return most_bytes([&] {
           on_group(2, over, [&](const std::shared_ptr<Communicator>& comm) {
             const auto optimizer =
                 optimizer_of({params[comm->rank()]}, comm, {.sync = {.anchor_device = anchor_device}});
             for (int step = 1; step <= 6; ++step) optimizer->step();
             wait_for_stream();
             return 0;
           });
         }) /
         ranks_on_gpu_0(2);
}

TEST(MemoryOfGpus, HoldsAnchorVelocityAndWireAndNothingElseOverGloo) {
  OUTERLOOP_NEEDS_GPUS(1);
  const int64_t bytes = bytes_of_rounds(Over::gloo, std::nullopt);
  EXPECT_GE(bytes, 3 * vector_bytes);
  EXPECT_LE(bytes, 3 * vector_bytes + small);
}

TEST(MemoryOfGpus, HoldsAnchorVelocityAndWireAndNothingElseOverNccl) {
  OUTERLOOP_NEEDS_GPUS(2);
  EXPECT_LE(bytes_of_rounds(Over::nccl, std::nullopt), 3 * vector_bytes + small);
}

TEST(MemoryOfGpus, HoldsNothingWithAnchorsOnTheCpuOverGloo) {
  OUTERLOOP_NEEDS_GPUS(1);
  EXPECT_EQ(bytes_of_rounds(Over::gloo, at::kCPU), 0);
}

/// Two chunks of a wire, here one that is all of it.
TEST(MemoryOfGpus, HoldsTwoBuffersWithAnchorsOnTheCpuOverNccl) {
  OUTERLOOP_NEEDS_GPUS(2);
  EXPECT_LE(bytes_of_rounds(Over::nccl, at::kCPU), 2 * vector_bytes + small);
}

TEST(MemoryOfGpus, IsAllocatedOnceForAllRounds) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_group(2, Over::gloo, [](const std::shared_ptr<Communicator>& comm) {
    const std::vector<Tensor> params = model(Place::gpu, comm->rank());
    const auto optimizer = optimizer_of(params, comm, {});
    optimizer->sync();
    const auto meet = [&] { comm->all_reduce_sum(torch::zeros({1})).wait(); };
    meet();
    const int64_t before = stats().allocation[all].allocated;
    meet();
    for (int round = 0; round < 3; ++round) optimizer->sync();
    meet();
    EXPECT_EQ(stats().allocation[all].allocated, before);
    return 0;
  });
}

TEST(MemoryOfGpus, IsNotNeededToLoadACheckpoint) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_ranks(1, [](int) {
    const std::vector<Tensor> params = model(Place::gpu, 0);
    const auto optimizer = optimizer_of(params, connect_alone(), {});
    optimizer->sync();
    std::ostringstream out;
    torch::serialize::OutputArchive saved;
    optimizer->save(saved);
    saved.save_to(out);
    EXPECT_EQ(most_bytes([&] {
                std::istringstream in(out.str());
                torch::serialize::InputArchive archive;
                archive.load_from(in);
                optimizer->load(archive);
              }),
              0);
  });
}

TEST(MemoryOfGpus, OfAParameterThatMovedIsFoundAtTheNextRound) {
  OUTERLOOP_NEEDS_GPUS(1);
  for (const std::optional<at::Device> anchor_device :
       {std::optional<at::Device>(), std::optional<at::Device>(at::kCPU)}) {
    const auto run = [&](Place place) {
      return on_group(2, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
        Story story;
        const std::vector<Tensor> params = model(place, comm->rank());
        const auto optimizer = optimizer_of(params, comm, {.sync = {.anchor_device = anchor_device}});
        for (int step = 1; step <= 6; ++step) {
          for (const Tensor& param : params) param.set_data(param.detach().clone());
          optimizer->step();
          story.seen.push_back(forward(params));
        }
        story.anchors = on_cpu(optimizer->anchors());
        wait_for_stream();
        return story;
      });
    };
    expect_same(run(Place::gpu), run(Place::cpu));
  }
}

}  // namespace
}  // namespace outerloop
