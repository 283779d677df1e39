#include "kernels/side_streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace outerloop::kernels {

void SideStreams::cover(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) {
    const auto here = [&](const c10::Stream& stream) { return stream.device() == device; };
    if (device.is_cpu() || std::any_of(own_.begin(), own_.end(), here)) continue;
    const c10::impl::VirtualGuardImpl impl(device.type());
    own_.push_back(impl.getStreamFromGlobalPool(device));
    impl.exchangeStream(own_.back());
  }
}

void SideStreams::finish() const {
  for (const c10::Stream& stream : own_) stream.synchronize();
}

StreamEvents::StreamEvents(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) {
    if (device.is_cpu()) continue;
    events_.emplace_back(device.type());
    events_.back().record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void StreamEvents::block_current_streams() const {
  for (const c10::Event& event : events_) {
    event.block(c10::impl::VirtualGuardImpl(event.device_type()).getStream(event.device()));
  }
}

}  // namespace outerloop::kernels
