#include "comm/staged.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

namespace outerloop::comm {

/// collective(part), in place, on each chunk of `flat` on the group's device.
template <class Collective>
void Staged::by_chunks(const Tensor& flat, const Collective& collective) {
  TORCH_CHECK(flat.device() == device_ && flat.is_contiguous(), "needs a contiguous tensor on ", device_,
              ", got one on ", flat.device());
  const c10::Stream stream = kernels::stream_between(device_, comm_.device());
  const c10::DeviceGuard guard(stream.device());
  const Tensor whole = flat.detach().view(-1);
  const auto range = [&](int64_t chunk) {
    const int64_t begin = chunk * kernels::staged_chunk;
    return whole.narrow(0, begin, std::min(kernels::staged_chunk, whole.numel() - begin));
  };
  const int64_t chunks = (whole.numel() + kernels::staged_chunk - 1) / kernels::staged_chunk;
  std::array<Tensor, 2> parts;
  const auto bring = [&](int64_t chunk) {
    if (chunk >= chunks) return;
    const Tensor from = range(chunk);
    parts[chunk % 2] = staging_.buffer(chunk, static_cast<int64_t>(from.nbytes())).view(from.scalar_type());
    parts[chunk % 2].copy_(from, /*non_blocking=*/true);
    staging_.copying(chunk, stream);
  };
  bring(0);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    bring(chunk + 1);
    staging_.finish(chunk);
    collective(parts[chunk % 2]).wait();
    range(chunk).copy_(parts[chunk % 2], /*non_blocking=*/true);
    staging_.copying(chunk, stream);
  }
  if (!device_.is_cpu()) return;
  for (int64_t slot = 0; slot < 2; ++slot) staging_.finish(slot);  // what is on the CPU is read without a stream
}

Pending Staged::all_reduce_sum(Tensor flat) {
  by_chunks(flat, [&](const Tensor& part) { return comm_.all_reduce_sum(part); });
  return {};
}

Pending Staged::broadcast(Tensor flat, int root) {
  by_chunks(flat, [&](const Tensor& part) { return comm_.broadcast(part, root); });
  return {};
}

/// These go in one piece: headers, texts and coded wires, which are small.
Pending Staged::all_gather(Tensor rows, Tensor flat) {
  const Tensor mine = flat.to(comm_.device());
  const Tensor all = at::empty(rows.sizes(), rows.options().device(comm_.device()));
  comm_.all_gather(all, mine).wait();
  rows.copy_(all);
  return {};
}

Pending Staged::all_to_all(Tensor out, Tensor in) {
  const Tensor mine = in.to(comm_.device());
  const Tensor all = at::empty(out.sizes(), out.options().device(comm_.device()));
  comm_.all_to_all(all, mine).wait();
  out.copy_(all);
  return {};
}

Communicator& Reach::from(at::Device device) {
  if (device == comm_->device() || comm_->size() == 1) return *comm_;
  std::unique_ptr<Staged>& staged = staged_[device.str()];
  if (!staged) staged = std::make_unique<Staged>(*comm_, device);
  return *staged;
}

}  // namespace outerloop::comm
