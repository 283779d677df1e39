#include <cuda_runtime.h>

#include <string>

#include "device.hpp"
#include "options.hpp"

int count_gpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  const std::string reason = error == cudaSuccess ? "it counts none" : cudaGetErrorString(error);
  throw BadInput("--device cuda: the CUDA runtime finds no GPU here (" + reason + "); --device cpu needs none");
}
