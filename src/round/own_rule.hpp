#pragma once

#include "round/fragment.hpp"

namespace outerloop::round {

OuterState copy_of(const OuterState& state);

/// The states after the outer step, of a rule that the kernels do not know. The old ones stay as they are, so that a
/// step that throws changes nothing.
std::vector<OuterState> stepped(const std::vector<Bucket>& buckets, const Wires& wires, const OuterRule& rule,
                                double inverse_weight);

}  // namespace outerloop::round
