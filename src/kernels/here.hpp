#pragma once

#include <ATen/Tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

/// Where work on a GPU goes. For cuda.cpp alone: a build without CUDA has not these headers.

namespace outerloop::kernels::cuda {

using at::Tensor;

/// The device of a tensor made current, and its current stream.
struct Here {
  explicit Here(at::Device device)
      : guard(device), current(c10::cuda::getCurrentCUDAStream(device.index())), stream(current.stream()) {}

  /// What is let go of while the stream still uses it must not become another tensor's memory before that is over. By
  /// itself torch knows only of the stream on which a tensor was made.
  template <class... Tensors>
  void uses(const Tensors&... tensors) const {
    (record(tensors), ...);
  }

  c10::cuda::CUDAGuard guard;
  c10::cuda::CUDAStream current;
  cudaStream_t stream;

 private:
  void record(const Tensor& tensor) const {
    if (tensor.defined()) c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), current);
  }
};

}  // namespace outerloop::kernels::cuda
