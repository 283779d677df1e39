#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/library_backend.hpp"

namespace outerloop::testing {

const std::vector<std::shared_ptr<Backend>>& backends() {
  static const std::vector<std::shared_ptr<Backend>> all = [] {
    if (c10::cuda::device_count() == 0) {
      std::fprintf(stderr, "no GPU: these tests need one\n");
      std::exit(1);
    }
    const at::Device gpu(at::kCUDA, 0);
    return std::vector<std::shared_ptr<Backend>>{std::make_shared<LibraryBackend>("Cuda", gpu, gpu),
                                                 std::make_shared<LibraryBackend>("Offload", gpu, at::kCPU)};
  }();
  return all;
}

}  // namespace outerloop::testing
