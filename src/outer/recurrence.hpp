#pragma once

#include <outerloop/outer_rule.hpp>

#include <optional>

namespace outerloop {

/// The rules that kernels and limits know: math::momentum_step, or descend if momentum is 0.
struct Recurrence {
  double lr;
  double momentum;
  bool nesterov;
};

/// Nothing for a user's own.
inline std::optional<Recurrence> recurrence(const OuterRule& rule) {
  if (dynamic_cast<const Average*>(&rule)) return Recurrence{1, 0, false};
  if (const auto* nesterov = dynamic_cast<const Nesterov*>(&rule)) {
    return Recurrence{nesterov->lr, nesterov->momentum, nesterov->nesterov};
  }
  return std::nullopt;
}

}  // namespace outerloop
