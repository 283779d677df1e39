#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace outerloop {

enum class Outcome { committed, aborted };

/// What one round did on this replica. `outcome` and `reason` are the same on every replica.
struct SyncReport {
  int64_t inner_step = 0;  ///< inner steps taken when the round began, at its send
  int64_t staleness = 0;   ///< inner steps from there to its apply
  int64_t fragment = 0;    ///< its number
  int64_t round = 0;       ///< rounds of the fragment that were committed when it ended
  Outcome outcome = Outcome::committed;
  std::string reason = {};     ///< why it aborted, or what was repaired; empty for a plain commit
  double delta_norm = 0;       ///< L2 norm of this replica's delta
  double mean_delta_norm = 0;  ///< L2 norm of the mean delta; 0 in commit_if, where it is not known yet, and if aborted
  int64_t wire_bytes = 0;  ///< bytes of delta this replica sent, exact by codec, else as a ring all-reduce; the state
                           ///< that a repair (and sync() of eager replicas) sends around once is not in it
  int replicas = 1;
  double weight = 1;                       ///< this replica's weight
  std::vector<int64_t> without_grad = {};  ///< parameters (index over all groups) without a gradient at this step:
                                           ///< frozen ones excepted, these take no part in training, often by a mistake
  std::chrono::duration<double> send{};    ///< forming the delta
  std::chrono::duration<double> reduce{};  ///< in communication, waiting for slower replicas included; of a round that
                                           ///< is pipelined, from its first header to its last piece
  std::chrono::duration<double> reduce_wait{};  ///< how long training waited; without delay and lanes, all of it,
                                                ///< and a little more with what lies between
  std::chrono::duration<double> apply{};        ///< the outer step
};

}  // namespace outerloop
