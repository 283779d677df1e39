#pragma once

#include <functional>
#include <vector>

#include <outerloop/c10d.hpp>

namespace outerloop::comm {

enum class Parting { healthy, failed };

/// How a Communicator parts from a group that it alone owns: once, after the first failure, or when the Communicator
/// and all its Pendings are gone. Must not throw.
using Part = std::function<void(c10::intrusive_ptr<c10d::ProcessGroup>, Parting)>;

/// from_c10d of the first of `groups`; the others are its lanes. Each is parted from by `part`, where there is one,
/// instead of being let go of; one that is there several times, once.
std::shared_ptr<Communicator> over_c10d(std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups, at::Device device,
                                        Part part = nullptr);

}  // namespace outerloop::comm
