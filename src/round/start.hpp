#pragma once

#include <outerloop/outer_loop.hpp>

#include <string>
#include <vector>

#include "round/exchange.hpp"

namespace outerloop::round {

/// What ranks compare before they work together.
struct Description {
  std::string text;  ///< options, then parameters; a line each
  uint64_t digest = 0;
  explicit Description(std::string text);
};

/// All ranks agree on `description`, and on the values of `params` as sync.start says: Start::broadcast writes rank 0's
/// into all. Collective; throws ConsistencyError on every rank, CommError.
void agree(Exchange& exchange, const Description& description, const std::vector<Tensor>& params,
           const SyncOptions& sync, int64_t inner_step, int64_t rounds);

}  // namespace outerloop::round
