#pragma once

#include <outerloop/planner.hpp>

#include <functional>

namespace outerloop::planner {

/// probe() by another clock, which gives seconds; only rank 0 asks it.
Link probe(Communicator& comm, double seconds, const std::function<double()>& now);

}  // namespace outerloop::planner
