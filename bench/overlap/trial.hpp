#pragma once

#include <outerloop/communicator.hpp>

#include <memory>
#include <vector>

namespace outerloop::bench {

struct Plan {
  int64_t sync_every = 20;
  int fragments = 1;
  int64_t delay = 0;
};

/// What one replica saw of a training from the start. A window is sync_every inner steps; the first is not timed, and
/// what drain() waits for at the end is not either. Seconds are means.
struct Trial {
  std::vector<float> losses;     ///< of all inner steps
  double step_seconds = 0;       ///< with what rounds take
  double computing_seconds = 0;  ///< of a step, without
  double under_way_seconds = 0;  ///< of a step while a flight is under way, without those that send or apply
  double quiet_seconds = 0;      ///< of a step while none is
  double peak_bytes = 0;         ///< that one step gives to the network, at most
  std::vector<double> waits;     ///< seconds, for each message
};

enum class Steps {
  train,
  skip  ///< count steps and compute nothing: the other replica has this one's core
};

/// All replicas of `comm` begin together.
Trial train(const std::shared_ptr<Communicator>& comm, const Plan& plan, int64_t windows, Steps steps = Steps::train);

}  // namespace outerloop::bench
