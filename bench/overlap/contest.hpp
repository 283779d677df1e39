#pragma once

#include <outerloop/planner.hpp>

#include <memory>
#include <string>
#include <vector>

#include "options.hpp"
#include "trial.hpp"

namespace outerloop::bench {

/// One schedule, without throttle and with it: what is compared, of each repetition.
struct Pair {
  std::vector<double> open_step, step, computing;  ///< seconds, of the slower replica
  std::vector<double> predicted_step;
  std::vector<double> wait;       ///< seconds of a window, mean of the replicas
  std::vector<double> link_wait;  ///< the same of the replica that is behind: that which is ahead waits for it too
  std::vector<double> hidden;     ///< of link_wait without a delay, in the same repetition
  double peak_bytes = 0;
  bool same_losses = true;  ///< all of all repetitions, with throttle or without, on all replicas
  std::vector<float> losses;
};

struct Contender {
  std::string name;
  Plan plan;
  Pair pair = {};
};

/// All that is found. The first contender has no delay.
struct Results {
  std::vector<Contender> contenders;
  std::vector<double> courier_alone, courier_shared;  ///< inner step under way / quiet: with a core free, and with none
  std::vector<double> mbit, busy;  ///< of the link; communication / computing of a round of the whole
  double latency_seconds = 0;
  bool tells = false;  ///< this is the replica that prints them
};

/// Collective: every replica is told the same, but for losses, which are its own.
Results hold_contest(const Options& options);

}  // namespace outerloop::bench
