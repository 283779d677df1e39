#pragma once

#include <functional>

#include <outerloop/c10d.hpp>

namespace outerloop::comm {

enum class Parting { healthy, failed };

/// How a Communicator parts from a group that it alone owns: once, after the first failure, or when the Communicator
/// and all its Pendings are gone. Must not throw.
using Part = std::function<void(c10::intrusive_ptr<c10d::ProcessGroup>, Parting)>;

/// from_c10d, for a group that is parted from by `part` instead of being let go of.
std::shared_ptr<Communicator> over_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, Part part);

}  // namespace outerloop::comm
