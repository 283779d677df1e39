#pragma once

#include "round/flight.hpp"

namespace outerloop::round {

/// Whether rounds of this fragment are pipelined: the group has lanes where the parameters and their state are, the
/// kernels know the rule, and the delta travels whole. The same on every rank.
bool pipelined(const Fragment& fragment, Exchange& exchange, const OuterRule& rule);

/// send and travel in one. The wire goes in pieces, dealt out to the lanes: while some travel, the next are formed and
/// those that have arrived are stepped, aside from the anchor, which changes when the flight lands. Headers are
/// exchanged before, as what does not fit together must not be sent, and when all has been formed. Throws CommError,
/// and then nothing outer has changed.
Flight pipeline(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
                Exchange& exchange, OnMismatch on_mismatch);

}  // namespace outerloop::round
