#include "kernels/cuda.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cuda/check.hpp"
#include "cuda/launch.hpp"
#include "kernels/here.hpp"

/// The only place that sees both torch and the kernels' launches.

namespace outerloop::kernels::cuda {

namespace {

using outerloop::cuda::Chunk;
using outerloop::cuda::Run;
using outerloop::cuda::Sum;
using outerloop::cuda::Table;
using outerloop::cuda::Type;
using outerloop::cuda::Workspace;

constexpr std::array types{Type::float32, Type::bfloat16, Type::float16, Type::float64};

Type type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Type::float32;
    case at::kBFloat16:
      return Type::bfloat16;
    case at::kHalf:
      return Type::float16;
    case at::kDouble:
      return Type::float64;
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel for ", dtype);
  }
}

Tensor device_bytes(size_t count, at::Device device) {
  return at::empty({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kByte).device(device));
}
Tensor pinned_bytes(size_t count) {
  return at::empty({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

Workspace* workspace_in(const Tensor& bytes) { return static_cast<Workspace*>(bytes.mutable_data_ptr()); }

Tensor new_workspace(const Here& here, at::Device device) {
  const size_t bytes = outerloop::cuda::workspace_bytes();
  Tensor workspace = device_bytes(bytes, device);
  OUTERLOOP_CUDA_CHECK(cudaMemsetAsync(workspace.mutable_data_ptr(), 0, bytes, here.stream));
  return workspace;
}

/// Waits for the stream.
outerloop::cuda::Summary read(const Here& here, const Tensor& workspace, const Tensor& pinned) {
  const void* total = outerloop::cuda::total(workspace_in(workspace));
  void* to = pinned.mutable_data_ptr();
  OUTERLOOP_CUDA_CHECK(
      cudaMemcpyAsync(to, total, sizeof(outerloop::cuda::Summary), cudaMemcpyDeviceToHost, here.stream));
  OUTERLOOP_CUDA_CHECK(cudaStreamSynchronize(here.stream));
  return *static_cast<outerloop::cuda::Summary*>(to);
}

outerloop::cuda::Summary read_once(const Here& here, const Tensor& workspace) {
  return read(here, workspace, pinned_bytes(sizeof(outerloop::cuda::Summary)));
}

Summary to_summary(const outerloop::cuda::Summary& s) { return {s.sum_squares, s.non_finite, s.fingerprint}; }

/// What the device has of one Params: its chunks, sorted by type, and room for sums.
struct Kept {
  std::vector<std::pair<Type, Run>> runs;  ///< that the tables were made of
  std::vector<Table> tables;               ///< one for each type there is
  Tensor chunks, workspace, pinned;
};

bool same(const std::pair<Type, Run>& a, const std::pair<Type, Run>& b) {
  return a.first == b.first && a.second.data == b.second.data && a.second.offset == b.second.offset &&
         a.second.numel == b.second.numel;
}

void make_tables(Kept& kept, at::Device device) {
  std::vector<Chunk> all;
  std::vector<std::pair<Type, size_t>> counts;
  for (const Type type : types) {
    std::vector<Run> runs;
    for (const auto& [of, run] : kept.runs) {
      if (of == type) runs.push_back(run);
    }
    if (runs.empty()) continue;
    const std::vector<Chunk> chunks = outerloop::cuda::cut(runs, type);
    all.insert(all.end(), chunks.begin(), chunks.end());
    counts.emplace_back(type, chunks.size());
  }
  const size_t bytes = all.size() * sizeof(Chunk);
  const Tensor upload = pinned_bytes(bytes);
  if (bytes > 0) std::memcpy(upload.mutable_data_ptr(), all.data(), bytes);
  kept.chunks = device_bytes(bytes, device);
  kept.chunks.copy_(upload, /*non_blocking=*/true);
  kept.tables.clear();
  const Chunk* next = static_cast<const Chunk*>(kept.chunks.const_data_ptr());
  for (const auto& [type, count] : counts) {
    kept.tables.push_back({next, static_cast<int64_t>(count), type});
    next += count;
  }
}

/// The tables are as long-lived as the parameters' addresses, sizes and types.
Kept& kept_of(Params& params, const Here& here) {
  if (!params.on_device) params.on_device = std::make_shared<Kept>();
  Kept& kept = *static_cast<Kept*>(params.on_device.get());
  std::vector<std::pair<Type, Run>> runs;
  runs.reserve(params.segments.size());
  for (const Segment& s : params.segments) runs.push_back({type_of(s.dtype), {s.data, s.offset, s.numel}});
  if (!kept.chunks.defined() || !std::equal(runs.begin(), runs.end(), kept.runs.begin(), kept.runs.end(), same)) {
    kept.runs = std::move(runs);
    make_tables(kept, params.device);
  }
  if (!kept.workspace.defined()) {
    kept.workspace = new_workspace(here, params.device);
    kept.pinned = pinned_bytes(sizeof(outerloop::cuda::Summary));
  }
  here.uses(kept.chunks, kept.workspace);
  return kept;
}

/// run(table, sum) for the parameters of each type, the sums one after the other into one.
template <class Launch>
void for_each_table(Kept& kept, const Launch& run) {
  for (const Table& table : kept.tables) run(table, Sum{workspace_in(kept.workspace), &table != &kept.tables.front()});
}

}  // namespace

bool available() { return true; }

Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight) {
  const Here here(params.device);
  Kept& kept = kept_of(params, here);
  here.uses(anchor, wire);
  for_each_table(kept, [&](const Table& table, const Sum& sum) {
    outerloop::cuda::send({table, anchor.const_data_ptr(), wire.mutable_data_ptr(), weight, sum}, here.stream);
  });
  return to_summary(read(here, kept.workspace, kept.pinned));
}

void apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step,
           double* sum_squares) {
  const Here here(params.device);
  Kept& kept = kept_of(params, here);
  here.uses(anchor, velocity, wire);
  for_each_table(kept, [&](const Table& table, const Sum& sum) {
    outerloop::cuda::apply({.params = table,
                            .anchor = anchor.mutable_data_ptr(),
                            .velocity = velocity.defined() ? velocity.mutable_data_ptr() : nullptr,
                            .wire = wire.const_data_ptr(),
                            .inverse_weight = step.inverse_weight,
                            .lr = step.lr,
                            .momentum = step.momentum,
                            .nesterov = step.nesterov,
                            .keep_local = step.keep_local,
                            .sum = sum},
                           here.stream);
  });
  if (sum_squares) *sum_squares = read(here, kept.workspace, kept.pinned).sum_squares;
}

void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                const Step& step, double* sum_squares) {
  const Here here(anchor.device());
  here.uses(anchor, velocity, wire, next_velocity);
  const Tensor workspace = sum_squares ? new_workspace(here, anchor.device()) : Tensor();
  outerloop::cuda::step_apart({.type = type_of(anchor.scalar_type()),
                               .numel = anchor.numel(),
                               .anchor = anchor.const_data_ptr(),
                               .velocity = velocity.defined() ? velocity.const_data_ptr() : nullptr,
                               .wire = wire.mutable_data_ptr(),
                               .next_velocity = velocity.defined() ? next_velocity.mutable_data_ptr() : nullptr,
                               .inverse_weight = step.inverse_weight,
                               .lr = step.lr,
                               .momentum = step.momentum,
                               .nesterov = step.nesterov,
                               .sum = {sum_squares ? workspace_in(workspace) : nullptr, false}},
                              here.stream);
  if (sum_squares) *sum_squares = read_once(here, workspace).sum_squares;
}

void delta(Params& params, const Tensor& anchor, const Tensor& delta) {
  const Here here(params.device);
  here.uses(anchor, delta);
  for (const Table& table : kept_of(params, here).tables) {
    outerloop::cuda::delta(table, anchor.const_data_ptr(), delta.mutable_data_ptr(), here.stream);
  }
}

void gather(Params& params, const Tensor& flat) {
  const Here here(params.device);
  here.uses(flat);
  for (const Table& table : kept_of(params, here).tables) {
    outerloop::cuda::gather(table, flat.mutable_data_ptr(), here.stream);
  }
}

void scatter(Params& params, const Tensor& flat, double keep_local) {
  const Here here(params.device);
  here.uses(flat);
  for (const Table& table : kept_of(params, here).tables) {
    outerloop::cuda::scatter(table, flat.const_data_ptr(), keep_local, here.stream);
  }
}

void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step) {
  const Here here(anchor.device());
  here.uses(anchor, velocity, mean_delta);
  outerloop::cuda::step({.type = type_of(anchor.scalar_type()),
                         .numel = anchor.numel(),
                         .anchor = anchor.mutable_data_ptr(),
                         .velocity = velocity.defined() ? velocity.mutable_data_ptr() : nullptr,
                         .mean_delta = mean_delta.const_data_ptr(),
                         .lr = step.lr,
                         .momentum = step.momentum,
                         .nesterov = step.nesterov},
                        here.stream);
}

Summary summarize(const Tensor& flat) {
  const Here here(flat.device());
  const Tensor workspace = new_workspace(here, flat.device());
  outerloop::cuda::summarize(type_of(flat.scalar_type()), flat.numel(), flat.const_data_ptr(),
                             {workspace_in(workspace), false}, here.stream);
  return to_summary(read_once(here, workspace));
}

}  // namespace outerloop::kernels::cuda
