#pragma once

#include "fibres.hpp"  // of tests/cuda/shim
#include "kernels/backend.hpp"

namespace outerloop::testing {

/// The CUDA kernels, compiled by the host's compiler and run as fibres: one backend for each schedule.
std::vector<std::shared_ptr<Backend>> shim_backends();

}  // namespace outerloop::testing
