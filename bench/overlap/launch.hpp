#pragma once

#include <functional>

namespace outerloop::bench {

/// Whether this process is one replica of a group that somebody else started.
bool is_replica();

/// Runs `replica` in this process and in one more, as ranks 0 and 1 of a group on this machine: RANK and the other
/// variables of connect_from_env are set. Call it before anything starts a thread. Returns the exit code: 0 if both
/// ended with 0.
int launch(const std::function<int()>& replica);

}  // namespace outerloop::bench
