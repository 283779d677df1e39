#include "device.hpp"
#include "options.hpp"

int count_gpus() {
  throw BadInput(
      "--device cuda: this program is built without CUDA; use train_gpt_cuda, which is built beside it where there is "
      "an nvcc and a libtorch with CUDA (CMake's -DOUTERLOOP_CUDA=ON says what is missing)");
}
