#pragma once

#include <outerloop/outer_loop.hpp>

#include <string>

#include "round/exchange.hpp"
#include "round/fragment.hpp"
#include "round/start.hpp"

namespace outerloop::round {

/// What a round needs to know besides the fragment.
struct Terms {
  const OuterRule& rule;
  const SyncOptions& sync;
  const Description& description;
  double keep_local;
  int64_t inner_step;
};

/// Header of this replica in its present state, for a conversation about `talk`.
Header header(Talk talk, const Fragment& fragment, const Terms& terms);

/// One round: send, exchange of headers, decision, reduce, apply. On every rank it commits or aborts, with the same
/// reason. `prepare` runs first, on this replica alone; if it, or a callback, throws, the round aborts everywhere and
/// the exception goes on here. Throws ConsistencyError, CommError: then nothing outer has changed.
SyncReport run(Fragment& fragment, Exchange& exchange, const Terms& terms, std::vector<int64_t> without_grad);

}  // namespace outerloop::round
