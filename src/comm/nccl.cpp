#include "comm/nccl.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <outerloop/error.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <thread>

#include "comm/c10d.hpp"
#include "comm/deadline.hpp"
#include "comm/message.hpp"
#include "comm/nccl_environment.hpp"
#include "comm/serial.hpp"

namespace outerloop::comm {

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct Joined {
  Group group;
  c10::intrusive_ptr<c10d::Store> keys;  ///< the group's own
};

Joined join(const c10::intrusive_ptr<c10d::Store>& store, const Rendezvous& at, at::Device device,
            std::chrono::milliseconds joining) {
  const c10::cuda::CUDAGuard guard(device);
  const auto keys = own_keys(store, at, joining);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = at.timeout;
  const auto backend = [&] {
    const NcclEnvironment failures_are_exceptions;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(keys, at.rank, at.size, options);
  }();
  // All ranks meet now. At first use they would have to come to their groups in the same order, or wait for each other.
  backend->eagerConnectSingleDevice(device);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(keys, at.rank, at.size);
  group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  return {group, keys};
}

/// Tells the other ranks that this one needs the group no more, and waits until all have said so: none is then inside
/// an operation, nor will be. False if that is not to be had. Asks again and again instead of waiting in the store,
/// which serves nobody else meanwhile.
bool all_part(c10d::Store& keys, int size, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds pause{10};
  const auto end = std::chrono::steady_clock::now() + timeout;
  try {
    if (keys.add("parted", 1) == size) keys.set("all parted", std::vector<uint8_t>{1});
    while (!keys.check({"all parted"})) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  } catch (const std::exception&) {  // the store went with another rank
    return false;
  }
}

/// Ends the group's communicator. To destroy one is an operation of all ranks of a host; to abort it is not, and is
/// heard of by ranks that still use it.
void end(const Joined& joined, Parting parting, std::chrono::milliseconds timeout) {
  const auto backend = joined.group->getBackend(at::kCUDA);
  if (parting == Parting::healthy && all_part(*joined.keys, joined.group->getSize(), timeout)) {
    backend->shutdown();
  } else {
    backend->abort();
  }
}

/// On a thread of its own, which is left to itself if the other ranks do not part as well: a destructor cannot wait for
/// them as long as a collective does, and ranks may let go of several groups in different orders.
void part(Group group, c10::intrusive_ptr<c10d::Store> keys, Parting parting,
          std::chrono::milliseconds timeout) noexcept {
  constexpr std::chrono::milliseconds patience{1000};
  try {
    within(
        std::min(timeout, patience), [joined = Joined{std::move(group), std::move(keys)}, parting, timeout]() mutable {
          const Joined last = std::move(joined);  // what is left goes here, not with the thread that waits for this one
          end(last, parting, timeout);
        });
  } catch (...) {  // nothing that the caller could do
  }
}

}  // namespace

int nccl_devices() { return c10::cuda::device_count(); }

void check_nccl_device(int cuda_device) {
  const int count = nccl_devices();
  TORCH_CHECK(cuda_device >= 0 && cuda_device < count, "cuda_device is ", cuda_device, ", but this process sees ",
              count, " GPUs");
}

std::shared_ptr<Communicator> nccl_over(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& at, int cuda_device,
                                        std::optional<std::chrono::milliseconds> joining) {
  check_nccl_device(cuda_device);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_device));
  const std::chrono::milliseconds limit = joining.value_or(at.timeout);
  try {
    const auto joined = within(limit, [=] { return join(store, at, device, limit); });
    // Its operations run on a stream of its own, one after the other: pieces overlap with the kernels, not each other.
    const std::vector<Group> groups(1 + at.lanes, joined.group);
    return over_c10d(groups, device, [keys = joined.keys, timeout = at.timeout](Group group, Parting parting) {
      part(std::move(group), keys, parting, timeout);
    });
  } catch (const std::exception& error) {
    throw CommError(c10::str(
        "rank ", at.rank, " of ", at.size, " could not join its NCCL group on ", device, " within ", at.timeout.count(),
        " ms (each rank needs a GPU of its own, else use connect_gloo; NCCL_SOCKET_IFNAME names the "
        "network interface to use, NCCL_DEBUG=INFO tells more): ",
        message_of(error)));
  }
}

}  // namespace outerloop::comm
