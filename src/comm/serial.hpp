#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace outerloop::comm {

/// The number of the group that all ranks are about to form over `store`: its keys are its own by it, so that a store
/// serves several groups, if all ranks make them in the same order, and another attempt after one that failed. Rank 0
/// gives it out once all others have asked; one that waits no longer takes its question back, so that attempts which
/// failed do not count afterwards. Collective; throws when `timeout` is over.
std::string serial_from_rank_zero(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout);

}  // namespace outerloop::comm
