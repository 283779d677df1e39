#pragma once

#include <outerloop/communicator.hpp>

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace outerloop::comm {

/// The part of `store` that belongs to the group which all ranks are about to form, so that a store serves several
/// groups, if all ranks make them in the same order, and another attempt after one that failed. Rank 0 numbers it once
/// all others have asked; one that waits no longer takes its question back, so that attempts which failed do not count
/// afterwards. Collective; throws when `timeout` is over, and CommError if a rank was told another size or other
/// lanes than rank 0.
c10::intrusive_ptr<c10d::Store> own_keys(const c10::intrusive_ptr<c10d::Store>& store, const Rendezvous& at,
                                         std::chrono::milliseconds timeout);

}  // namespace outerloop::comm
