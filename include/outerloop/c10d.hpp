#pragma once

#include <outerloop/communicator.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace outerloop {

/// An already built process group, for example the one DDP uses. Its timeouts apply. The group must have a backend for
/// `device` ("cuda": the current one); the Communicator shares ownership of it, until a call fails. Over NCCL the
/// failed operation, a late one too, ends in the abort of the group's communicator; and unless you set
/// TORCH_NCCL_BLOCKING_WAIT to 1 before you build the group, c10d's own thread may see a failure first and end the
/// process. Ignore SIGPIPE, as Python does, before you build one over Gloo: its threads are killed by it, and the
/// process with them, when a peer dies. (connect_* sees to that itself.)
std::shared_ptr<Communicator> from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device);

}  // namespace outerloop
