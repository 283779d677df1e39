#include "comm/gloo.hpp"

#include <outerloop/error.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "comm/c10d.hpp"
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

using Store = c10::intrusive_ptr<c10d::Store>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Group connected(const Store& keys, const Rendezvous& at) {
  auto options = c10d::ProcessGroupGloo::Options::create(at.timeout);
  options->devices.push_back(network_device(at.host));
  const auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, at.rank, at.size, options);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(keys, at.rank, at.size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

/// The group, then its lanes.
std::vector<Group> join(const Store& store, const Rendezvous& at, std::chrono::milliseconds joining) {
  const Store keys = own_keys(store, at, joining);
  std::vector<Group> groups{connected(keys, at)};
  for (int lane = 0; lane < at.lanes; ++lane) {
    groups.push_back(connected(c10::make_intrusive<c10d::PrefixStore>(c10::str("lane/", lane), keys), at));
  }
  return groups;
}

}  // namespace

std::shared_ptr<Communicator> gloo_over(Store store, const Rendezvous& at,
                                        std::optional<std::chrono::milliseconds> joining) {
  const std::chrono::milliseconds limit = joining.value_or(at.timeout);
  try {
    return over_c10d(within(limit, [=] { return join(store, at, limit); }), at::kCPU);
  } catch (const std::exception& error) {
    throw CommError(c10::str("rank ", at.rank, " of ", at.size, " could not join its Gloo group by way of ", at.host,
                             " within ", at.timeout.count(),
                             " ms (GLOO_SOCKET_IFNAME names the network interface to use): ", message_of(error)));
  }
}

}  // namespace outerloop::comm
