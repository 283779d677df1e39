#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace outerloop::cuda {

/// Throws std::runtime_error, naming the call and CUDA's own words, unless `error` is cudaSuccess.
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

}  // namespace outerloop::cuda

/// Every call of the CUDA runtime goes through this.
#define OUTERLOOP_CUDA_CHECK(call) ::outerloop::cuda::check(call, #call)
