#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

namespace outerloop::kernels {

/// For a thread that works beside the one that trains: its current streams on GPUs are others than those on which
/// models are trained.
class SideStreams {
 public:
  void cover(const std::vector<at::Device>& devices);  ///< on this thread, from now on; GPUs among them only
  void finish() const;                                 ///< waits on the host for all that was put on them

 private:
  std::vector<c10::Stream> own_;
};

}  // namespace outerloop::kernels
