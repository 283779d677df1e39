#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include <outerloop/outer_rule.hpp>
#include <outerloop/stages.hpp>

#include "outer/exact.hpp"

namespace outerloop {

void Average::step(OuterState& state, const Tensor& mean_delta) const { average_step(state.anchor, mean_delta); }

std::string Average::describe() const { return "Average"; }

Nesterov::Nesterov(double lr, double momentum, bool nesterov) : lr(lr), momentum(momentum), nesterov(nesterov) {
  TORCH_CHECK(std::isfinite(static_cast<float>(lr)) && lr >= 0, "outer_lr must be >= 0 and finite in float32, got ",
              lr);
  TORCH_CHECK(momentum >= 0 && momentum < 1, "outer_momentum must be in [0, 1), got ", momentum);
}

void Nesterov::step(OuterState& state, const Tensor& mean_delta) const {
  nesterov_step(state.anchor, state.slots.empty() ? Tensor() : state.slots[0], mean_delta, lr, momentum, nesterov);
}

std::string Nesterov::describe() const {
  return c10::str("Nesterov(lr=", exact(lr), ", momentum=", exact(momentum), ", nesterov=", nesterov, ")");
}

}  // namespace outerloop
