#include "comm/gloo.hpp"

#include <outerloop/c10d.hpp>
#include <outerloop/error.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "comm/deadline.hpp"
#include "comm/message.hpp"
#include "comm/serial.hpp"

namespace outerloop::comm {

namespace {

std::shared_ptr<gloo::transport::Device> network_device(const std::string& host) {
  using Gloo = c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) return Gloo::createDeviceForInterface(interface);
  if (host == "127.0.0.1" || host == "localhost" || host == "::1") return Gloo::createDeviceForHostname(host);
  return Gloo::createDefaultDevice();
}

c10::intrusive_ptr<c10d::ProcessGroup> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            const std::string& host, std::chrono::milliseconds timeout,
                                            std::chrono::milliseconds joining) {
  const auto keys = own_keys(store, rank, size, joining);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(network_device(host));
  const auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, size, options);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(keys, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace

std::shared_ptr<Communicator> gloo_over(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                        const std::string& host, std::chrono::milliseconds timeout,
                                        std::optional<std::chrono::milliseconds> joining) {
  const std::chrono::milliseconds limit = joining.value_or(timeout);
  try {
    const auto group = within(limit, [=] { return join(store, rank, size, host, timeout, limit); });
    return from_c10d(group, at::kCPU);
  } catch (const std::exception& error) {
    throw CommError(c10::str("rank ", rank, " of ", size, " could not join its Gloo group by way of ", host, " within ",
                             timeout.count(),
                             " ms (GLOO_SOCKET_IFNAME names the network interface to use): ", message_of(error)));
  }
}

}  // namespace outerloop::comm
