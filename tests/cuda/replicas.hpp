#pragma once

#include <outerloop/outerloop.hpp>

#include <utility>

#include "cuda/nccl.hpp"
#include "cuda/scripted.hpp"
#include "support/ranks.hpp"

/// Replicas on GPUs, and the same on the CPU, which they must equal.

namespace outerloop::testing {

enum class Place { cpu, gpu, both };
enum class Over { gloo, nccl };

inline at::Device gpu(int rank) { return {at::kCUDA, static_cast<c10::DeviceIndex>(gpu_of(rank))}; }

/// Parameters of all types, in odd sizes; with Place::both every other one is on the GPU.
inline std::vector<Tensor> model(Place place, int rank) {
  const std::vector<std::pair<std::vector<int64_t>, at::ScalarType>> kinds{
      {{1001}, at::kFloat}, {{7, 5}, at::kBFloat16}, {{129}, at::kDouble}, {{3, 0}, at::kFloat},
      {{33, 3}, at::kHalf}, {{}, at::kFloat},        {{2, 2}, at::kDouble}};
  std::vector<Tensor> params;
  for (const auto& [shape, type] : kinds) {
    const size_t index = params.size();
    const bool on_gpu = place == Place::gpu || (place == Place::both && index % 2 == 0);
    const Tensor values = scripted_values(shape, type, rank, 0, index);
    params.push_back((on_gpu ? values.to(gpu(rank)) : values).set_requires_grad(true));
  }
  return params;
}

/// The parameters as a forward pass would see them, which is given to the current stream now. Copies, of which those
/// from a GPU are there after a wait for it.
inline std::vector<Tensor> forward(const std::vector<Tensor>& params) {
  std::vector<Tensor> seen;
  for (const Tensor& param : params) {
    seen.push_back(torch::empty(param.sizes(), at::TensorOptions(param.scalar_type()).pinned_memory(param.is_cuda())));
    seen.back().copy_(param.detach(), /*non_blocking=*/true);
  }
  return seen;
}

inline std::vector<Tensor> on_cpu(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors)
    copies.push_back(tensor.detach().to(at::TensorOptions(at::kCPU), /*non_blocking=*/false, /*copy=*/true));
  return copies;
}

inline void wait_for_stream() { c10::cuda::getCurrentCUDAStream().synchronize(); }

struct Plan {
  bool diloco = true;
  int ranks = 2;
  Streaming streaming = {};
  SyncOptions sync = {};
  int64_t nan_at = 0;   ///< step at which rank 1 leaves the finite
  bool reports = true;  ///< with them the host waits for the end of a round
  int64_t steps = 6;
};

inline std::unique_ptr<OuterLoopOptimizer> optimizer_of(const std::vector<Tensor>& params,
                                                        const std::shared_ptr<Communicator>& comm, const Plan& plan) {
  auto inner = std::make_unique<Scripted>(params, comm->rank(), comm->rank() == 1 ? plan.nan_at : 0);
  if (!plan.diloco) {
    return std::make_unique<LocalSGDOptimizer>(std::move(inner), comm,
                                               LocalSGDOptions{.sync_every = 2, .sync = plan.sync});
  }
  return std::make_unique<DiLoCoOptimizer>(
      std::move(inner), comm, DiLoCoOptions{.sync_every = 2, .streaming = plan.streaming, .sync = plan.sync});
}

/// What is to be seen of a replica from outside.
struct Story {
  std::vector<std::vector<Tensor>> seen;  ///< parameters after each step
  std::vector<Tensor> anchors;            ///< in the end
  std::vector<SyncReport> reports;
};

inline Story train(const std::shared_ptr<Communicator>& comm, Place place, Plan plan) {
  Story story;
  if (plan.reports) plan.sync.on_sync = [&](const SyncReport& report) { story.reports.push_back(report); };
  const std::vector<Tensor> params = model(place, comm->rank());
  const auto optimizer = optimizer_of(params, comm, plan);
  for (int64_t step = 1; step <= plan.steps; ++step) {
    optimizer->step();
    story.seen.push_back(forward(params));
  }
  if (plan.streaming.eager) optimizer->sync();  // anchors are one again
  story.anchors = on_cpu(optimizer->anchors());
  wait_for_stream();
  return story;
}

/// body(communicator) for each rank, on a thread with a GPU and a stream of its own; returns what each returned.
template <class Body>
auto on_group(int ranks, Over over, Body body) {
  std::vector<std::invoke_result_t<Body&, std::shared_ptr<Communicator>>> results(ranks);
  const auto store = meeting_place();
  const auto group = over == Over::gloo ? gloo_group(ranks) : std::vector<std::shared_ptr<Communicator>>(ranks);
  on_ranks(ranks, [&](int rank) { results[rank] = body(over == Over::gloo ? group[rank] : nccl(store, rank, ranks)); });
  return results;
}

inline std::vector<Story> train(Place place, Over over, const Plan& plan) {
  return on_group(plan.ranks, over,
                  [&](const std::shared_ptr<Communicator>& comm) { return train(comm, place, plan); });
}

inline void expect_same(const SyncReport& a, const SyncReport& b) {
  EXPECT_EQ(a.inner_step, b.inner_step);
  EXPECT_EQ(a.round, b.round);
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.wire_bytes, b.wire_bytes);
  EXPECT_EQ(a.replicas, b.replicas);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_EQ(a.without_grad, b.without_grad);
  if (!std::isnan(b.delta_norm)) {
    EXPECT_NEAR(a.delta_norm, b.delta_norm, 1e-6 * b.delta_norm);
  }
  EXPECT_NEAR(a.mean_delta_norm, b.mean_delta_norm, 1e-6 * b.mean_delta_norm);
}

/// Bit for bit, but for the norms.
inline void expect_same(const std::vector<Story>& stories, const std::vector<Story>& expected) {
  ASSERT_EQ(stories.size(), expected.size());
  for (size_t rank = 0; rank < stories.size(); ++rank) {
    const Story &a = stories[rank], &b = expected[rank];
    ASSERT_EQ(a.seen.size(), b.seen.size());
    for (size_t step = 0; step < b.seen.size(); ++step) {
      for (size_t i = 0; i < b.seen[step].size(); ++i) {
        EXPECT_TRUE(same_bits(a.seen[step][i], b.seen[step][i]))
            << "parameter " << i << " of rank " << rank << " after step " << step + 1;
      }
    }
    EXPECT_TRUE(same_bits(a.anchors, b.anchors)) << "anchors of rank " << rank;
    ASSERT_EQ(a.reports.size(), b.reports.size());
    for (size_t i = 0; i < b.reports.size(); ++i) expect_same(a.reports[i], b.reports[i]);
  }
}

}  // namespace outerloop::testing
