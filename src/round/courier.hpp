#pragma once

#include <ATen/Tensor.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/side_streams.hpp"

namespace outerloop::round {

/// A thread that talks to the other replicas while this one trains: jobs run one after the other, in the order given.
/// On GPUs it has streams of its own, so that collectives do not queue behind training: a job follows what was on the
/// caller's current streams of `devices`, and nothing later. Destruction waits for all jobs.
class Courier {
 public:
  ~Courier();
  /// Starts the thread at the first call. What `job` put on the streams of `devices` is done when the result is ready.
  std::future<void> carry(std::vector<at::Device> devices, std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> jobs_;
  bool closed_ = false;
  kernels::SideStreams streams_;  ///< of the thread
  std::thread thread_;
};

}  // namespace outerloop::round
