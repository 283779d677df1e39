#include "kernels/offload.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu.hpp"
#include "kernels/staging.hpp"

namespace outerloop::kernels::offload {

namespace {

/// What of the parameters lies in one chunk of the flat vector: on the device, and in a buffer on the host, whose
/// segments are placed relative to the chunk.
struct Part {
  std::vector<std::pair<Tensor, Tensor>> copies;  ///< device, host
  Segments segments;
};

Tensor view(void* data, at::ScalarType dtype, int64_t numel, at::Device device) {
  return at::from_blob(data, {numel}, at::TensorOptions().dtype(dtype).device(device));
}

/// Parameters of several types follow each other in a buffer: each begins where any type may.
constexpr int64_t alignment = 16;

Part part_of(const Params& params, int64_t begin, int64_t end, const Tensor& buffer) {
  Part part;
  char* next = static_cast<char*>(buffer.mutable_data_ptr());
  for (const Segment& segment : params.segments) {
    const int64_t first = std::max(begin, segment.offset), last = std::min(end, segment.offset + segment.numel);
    if (first >= last) continue;
    const auto width = static_cast<int64_t>(c10::elementSize(segment.dtype));
    char* data = static_cast<char*>(segment.data) + (first - segment.offset) * width;
    part.copies.emplace_back(view(data, segment.dtype, last - first, params.device),
                             view(next, segment.dtype, last - first, at::kCPU));
    part.segments.push_back({next, segment.dtype, first - begin, last - first});
    next += ((last - first) * width + alignment - 1) / alignment * alignment;
  }
  return part;
}

/// work(segments, begin, n) on each chunk of a flat vector in turn, with its parameters brought to the host before
/// (`reads`) and taken back after (`writes`).
template <class Work>
void for_each_chunk(Params& params, const Tensor& flat, bool reads, bool writes, const Work& work) {
  const c10::DeviceGuard guard(params.device);
  const c10::Stream stream = stream_between(params.device, at::kCPU);
  if (!params.buffers) params.buffers = std::make_shared<Staging>(at::kCPU);
  Staging& buffers = *static_cast<Staging*>(params.buffers.get());
  const int64_t numel = flat.numel();
  std::array<Part, 2> parts;
  const auto bring = [&](int64_t chunk) {
    const int64_t begin = chunk * staged_chunk, end = std::min(numel, begin + staged_chunk);
    if (begin >= end) return;
    Part& part = parts[chunk % 2];
    const int64_t room = (end - begin) * flat.element_size() + alignment * static_cast<int64_t>(params.segments.size());
    part = part_of(params, begin, end, buffers.buffer(chunk, room));
    if (!reads) return;
    for (auto& [on_device, on_host] : part.copies) on_host.copy_(on_device, /*non_blocking=*/true);
    buffers.copying(chunk, stream);
  };
  bring(0);
  for (int64_t chunk = 0; chunk * staged_chunk < numel; ++chunk) {
    bring(chunk + 1);
    buffers.finish(chunk);
    const Part& part = parts[chunk % 2];
    const int64_t begin = chunk * staged_chunk;
    work(part.segments, begin, std::min(staged_chunk, numel - begin));
    if (!writes) continue;
    for (const auto& [on_device, on_host] : part.copies) on_device.copy_(on_host, /*non_blocking=*/true);
    buffers.copying(chunk, stream);
  }
}

}  // namespace

Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight) {
  Summary sum;
  for_each_chunk(params, anchor, true, false, [&](const Segments& part, int64_t begin, int64_t n) {
    sum += cpu::send(part, anchor.narrow(0, begin, n), wire.narrow(0, begin, n), weight, begin);
  });
  return sum;
}

double apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step) {
  double sum = 0;
  const bool mixes = step.keep_local != 0;
  for_each_chunk(params, anchor, mixes, true, [&](const Segments& part, int64_t begin, int64_t n) {
    sum += cpu::apply(part, anchor.narrow(0, begin, n), velocity.defined() ? velocity.narrow(0, begin, n) : velocity,
                      wire.narrow(0, begin, n), step);
  });
  return sum;
}

void delta(Params& params, const Tensor& anchor, const Tensor& delta) {
  for_each_chunk(params, anchor, true, false, [&](const Segments& part, int64_t begin, int64_t n) {
    cpu::delta(part, anchor.narrow(0, begin, n), delta.narrow(0, begin, n));
  });
}

void gather(Params& params, const Tensor& flat) {
  for_each_chunk(params, flat, true, false,
                 [&](const Segments& part, int64_t begin, int64_t n) { cpu::gather(part, flat.narrow(0, begin, n)); });
}

void scatter(Params& params, const Tensor& flat, double keep_local) {
  for_each_chunk(params, flat, keep_local != 0, true, [&](const Segments& part, int64_t begin, int64_t n) {
    cpu::scatter(part, flat.narrow(0, begin, n), keep_local);
  });
}

}  // namespace outerloop::kernels::offload
