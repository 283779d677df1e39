#pragma once

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cuda/check.hpp"

namespace outerloop::bench {

/// The time between two places of the current stream.
class Events {
 public:
  Events() {
    for (cudaEvent_t* event : {&start_, &stop_}) OUTERLOOP_CUDA_CHECK(cudaEventCreate(event));
  }
  Events(const Events&) = delete;
  ~Events() {
    for (cudaEvent_t event : {start_, stop_}) cudaEventDestroy(event);
  }

  /// Seconds that a call of `body` takes on average, of `calls` one after the other.
  double time(int64_t calls, const std::function<void(int64_t call)>& body) const {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    OUTERLOOP_CUDA_CHECK(cudaEventRecord(start_, stream));
    for (int64_t call = 0; call < calls; ++call) body(call);
    OUTERLOOP_CUDA_CHECK(cudaEventRecord(stop_, stream));
    OUTERLOOP_CUDA_CHECK(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    OUTERLOOP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds / 1e3 / static_cast<double>(calls);
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

struct Contender {
  std::string name;
  double bytes;  ///< that one call moves
  std::function<void(int64_t call)> body;
  std::vector<double> seconds = {};

  double median() const {
    std::vector<double> sorted = seconds;
    std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
    return sorted.at(sorted.size() / 2);
  }
};

/// Nine batches of each contender in turn, so that a change of the GPU's clock hits all alike. A batch is `at_least`
/// seconds long, and a whole number of times through `problems`.
inline void time_in_turn(std::vector<Contender>& contenders, int64_t problems, double at_least) {
  const Events events;
  std::vector<int64_t> calls;
  for (const Contender& contender : contenders) {
    events.time(problems, contender.body);  // warm up
    const double once = std::max(1e-7, events.time(problems, contender.body)) * static_cast<double>(problems);
    calls.push_back(problems * std::max<int64_t>(1, std::lround(std::ceil(at_least / once))));
  }
  for (int batch = 0; batch < 9; ++batch) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      contenders[i].seconds.push_back(events.time(calls[i], contenders[i].body));
    }
  }
}

}  // namespace outerloop::bench
