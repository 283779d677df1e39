#include "round/own_rule.hpp"

#include <c10/util/Exception.h>

#include <algorithm>

namespace outerloop::round {

namespace {

/// A rule of a user's must leave vectors as it found them, but for their values.
void check_same_vectors(const OuterRule& rule, const OuterState& after, const OuterState& before) {
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.defined() && a.device() == b.device() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.is_contiguous();
  };
  TORCH_CHECK(same(after.anchor, before.anchor) &&
                  std::equal(after.slots.begin(), after.slots.end(), before.slots.begin(), before.slots.end(), same),
              rule.describe(),
              "::step changed the number, type or shape of the state's vectors; it may change values only");
}

}  // namespace

OuterState copy_of(const OuterState& state) {
  OuterState copy{state.anchor.clone(), {}, state.round};
  for (const Tensor& slot : state.slots) copy.slots.push_back(slot.clone());
  return copy;
}

std::vector<OuterState> stepped(const std::vector<Bucket>& buckets, const Wires& wires, const OuterRule& rule,
                                double inverse_weight) {
  std::vector<OuterState> states;
  for (size_t i = 0; i < buckets.size(); ++i) {
    OuterState& state = states.emplace_back(copy_of(buckets[i].state));
    wires[i].mul_(inverse_weight);
    rule.step(state, wires[i]);
    check_same_vectors(rule, state, buckets[i].state);
  }
  return states;
}

}  // namespace outerloop::round
