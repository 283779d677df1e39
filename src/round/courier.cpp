#include "round/courier.hpp"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace outerloop::round {

Courier::~Courier() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::future<void> Courier::carry(std::vector<at::Device> devices, std::function<void()> job) {
  kernels::StreamEvents events(devices);
  std::packaged_task<void()> task(
      [this, events = std::move(events), devices = std::move(devices), job = std::move(job)] {
        const at::NoGradGuard no_grad;
        streams_.cover(devices);
        events.block_current_streams();
        job();
        streams_.finish();
      });
  std::future<void> done = task.get_future();
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(task));
  }
  changed_.notify_one();
  return done;
}

void Courier::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::packaged_task<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
  }
}

}  // namespace outerloop::round
