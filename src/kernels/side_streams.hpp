#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
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

/// What is on this thread's current streams of the GPUs among `devices`, for another thread's to wait for.
class StreamEvents {
 public:
  explicit StreamEvents(const std::vector<at::Device>& devices);
  void block_current_streams() const;  ///< orders it before what this thread puts on its own from now on

 private:
  std::vector<c10::Event> events_;
};

}  // namespace outerloop::kernels
