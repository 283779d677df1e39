#pragma once

#include <stdexcept>

namespace outerloop {

/// A peer or the transport failed, or did not answer in time. The inner step has been taken, unless parameters were
/// about to join; anchor, velocity and round counter are what they were. The group is unusable from here on: make a new
/// Communicator and call reconnect().
struct CommError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Replicas disagree on options, parameters, progress or anchors; names the first difference and the ranks. Thrown on
/// every rank; outer state is what it was, and the group is still usable.
struct ConsistencyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A checkpoint does not belong to this optimizer, or is damaged; names the first difference. Nothing was changed.
struct CheckpointError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace outerloop
