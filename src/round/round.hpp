#pragma once

#include "round/flight.hpp"

namespace outerloop::round {

/// A round is these three, one after the other. On every rank it commits or aborts, with the same reason; if a callback
/// throws, it aborts everywhere, and the exception stays in the flight.
///
/// send: params -> delta -> wire, and what the others shall hear.
Flight send(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
            const Exchange& exchange);
/// Exchange of headers, decision, reduction. Touches nothing but the flight, so that another thread can do it; throws
/// CommError.
void travel(Flight& flight, Exchange& exchange, OnMismatch on_mismatch);
/// Outer step, or what the verdict says instead. A repair talks to the other replicas. Throws ConsistencyError,
/// CommError, and then nothing outer has changed. What a rule or a parameter that was converted throws stays in the
/// flight, as it is of this rank alone. Eager: `newest` is the share to apply along with it, if any.
SyncReport land(Flight& flight, Fragment& fragment, Exchange& exchange, const Terms& terms,
                const Share* newest = nullptr);

/// Eager: the flight has just been sent, and keeps what is applied of it before it lands. Anchors are not compared.
void keep_share(Flight& flight, Fragment& fragment);
/// Outer step with this share alone, as there is no flight to land.
void apply_share(const Share& share, Fragment& fragment, const Terms& terms);

}  // namespace outerloop::round
