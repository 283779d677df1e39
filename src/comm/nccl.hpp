#pragma once

#include <outerloop/communicator.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>

namespace outerloop::comm {

/// How many GPUs NCCL can use in this process; none in a build without NCCL.
int nccl_devices();

/// Throws c10::Error if NCCL cannot use this GPU, or if this build has no NCCL.
void check_nccl_device(int cuda_device);

/// An NCCL group whose ranks meet over `store`, which serves several groups (see serial.hpp) and is kept until the
/// group goes. Its communicator is its own, and complete when this returns. All come within `joining`; by
/// itself, that is at.timeout. Its lanes are the group itself.
std::shared_ptr<Communicator> nccl_over(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& at, int cuda_device,
                                        std::optional<std::chrono::milliseconds> joining = {});

}  // namespace outerloop::comm
