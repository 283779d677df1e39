#pragma once

#include <outerloop/communicator.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>

namespace outerloop::comm {

/// A Gloo group whose ranks meet over `store`, which serves several groups (see serial.hpp). at.host tells whether the
/// group may stay on the loopback interface. All come within `joining`; by itself, that is at.timeout.
std::shared_ptr<Communicator> gloo_over(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& at,
                                        std::optional<std::chrono::milliseconds> joining = {});

}  // namespace outerloop::comm
