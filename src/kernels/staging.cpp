#include "kernels/staging.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace outerloop::kernels {

Staging::~Staging() {
  try {
    for (int64_t slot = 0; slot < 2; ++slot) finish(slot);
  } catch (...) {  // a device that has failed copies no more
  }
}

at::Tensor Staging::buffer(int64_t chunk, int64_t bytes) {
  finish(chunk);
  Slot& slot = slots_[chunk % 2];
  if (!slot.bytes.defined() || slot.bytes.numel() < bytes) {
    slot.bytes =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_).pinned_memory(device_.is_cpu()));
  }
  return slot.bytes.narrow(0, 0, bytes);
}

void Staging::copying(int64_t chunk, c10::Stream stream) {
  Slot& slot = slots_[chunk % 2];
  if (!slot.copied) slot.copied.emplace(stream.device_type());
  slot.copied->record(stream);
}

void Staging::finish(int64_t chunk) {
  Slot& slot = slots_[chunk % 2];
  if (slot.copied) slot.copied->synchronize();
}

c10::Stream stream_between(at::Device a, at::Device b) {
  const at::Device device = a.is_cpu() ? b : a;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace outerloop::kernels
