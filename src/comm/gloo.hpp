#pragma once

#include <outerloop/communicator.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace outerloop::comm {

/// A Gloo group whose ranks meet over `store`. The keys of each call are its own, so a store serves several groups if
/// all ranks make them in the same order, and another attempt after one that failed. `host` tells whether the group may
/// stay on the loopback interface.
std::shared_ptr<Communicator> gloo_over(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                        const std::string& host, std::chrono::milliseconds timeout);

}  // namespace outerloop::comm
