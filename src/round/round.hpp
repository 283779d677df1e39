#pragma once

#include <outerloop/outer_loop.hpp>

#include <exception>
#include <future>
#include <string>
#include <vector>

#include "round/exchange.hpp"
#include "round/fragment.hpp"
#include "round/share.hpp"
#include "round/start.hpp"

namespace outerloop::round {

/// What a round needs to know besides the fragment.
struct Terms {
  const OuterRule& rule;
  const SyncOptions& sync;
  const Description& description;
  const Streaming& streaming;
  int64_t inner_step;
};

/// A round between its send and its apply.
struct Flight {
  size_t fragment = 0;  ///< its number
  SyncReport report = {};
  Header header = {};
  std::exception_ptr error = {};  ///< thrown by a callback here; the round aborts on all replicas
  std::string text = {};          ///< the error's, or else the description
  Wires wires = {};
  Share share = {};  ///< of eager replicas
  Verdict verdict = {};
  std::future<void> arrived = {};  ///< when a courier travels
};

/// Header of this replica in its present state, for a conversation about `talk` after `rounds` rounds of `elements`.
Header header(Talk talk, const Terms& terms, int64_t rounds, int64_t elements);

/// A round is these three, one after the other. On every rank it commits or aborts, with the same reason; if a callback
/// throws, it aborts everywhere and the exception goes on here, at land.
///
/// send: params -> delta -> wire, and what the others shall hear.
Flight send(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad, int replicas);
/// Exchange of headers, decision, reduction. Touches nothing but the flight, so that another thread can do it; throws
/// CommError.
void travel(Flight& flight, Exchange& exchange, OnMismatch on_mismatch);
/// Outer step, or what the verdict says instead. A repair talks to the other replicas. Throws ConsistencyError,
/// CommError, and then nothing outer has changed. Eager: `newest` is the share to apply along with it, if any.
SyncReport land(Flight& flight, Fragment& fragment, Exchange& exchange, const Terms& terms,
                const Share* newest = nullptr);

/// Eager: the flight has just been sent, and keeps what is applied of it before it lands. Anchors are not compared.
void keep_share(Flight& flight, Fragment& fragment);
/// Outer step with this share alone, as there is no flight to land.
void apply_share(const Share& share, Fragment& fragment, const Terms& terms);

}  // namespace outerloop::round
