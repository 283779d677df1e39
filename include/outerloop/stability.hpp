#pragma once

#include <cstdint>

namespace outerloop {

/// What decides with which outer lr an outer optimizer converges.
struct OuterDynamics {
  double momentum = 0;      ///< in [0, 1); 0 is plain SGD, which with lr 1 is Average
  bool nesterov = true;     ///< false: heavy ball
  int64_t rounds_late = 0;  ///< rounds of a fragment that are under way when its next is sent: delay / sync_every,
                            ///< rounded down
  bool eager = false;       ///< a replica's share of the mean is its newest delta, not one `rounds_late` old
  int64_t replicas = 1;     ///< >= 1; counts only if eager
};

/// The limit: the largest outer lr for which every z with
///   (z - 1)(1 - momentum/z) + lr * q * (1 + momentum - momentum/z) * W = 0,   W = own + (1 - own) z^-rounds_late,   q
///   = 1
/// has |z| <= 1, where own = eager ? 1 / replicas : 0, and 1 stands for (1 + momentum - momentum/z) if not nesterov.
/// Below it anchors converge, above it they grow without bound, if slowly: by the factor |z| per round.
///
/// With rounds_late 0 it is 2 (1 + momentum) / (1 + 2 momentum) for Nesterov, 2 (1 + momentum) for heavy ball.
///
/// Holds for a quadratic loss of equal curvature on all replicas, inner SGD and keep_local 0. q is how far a replica
/// gets on its way to the optimum in one round, 1 - (1 - inner lr * curvature)^sync_every; near 1 for the steepest
/// directions, and with less the limit is higher: limit / q. For other inner optimizers, Adam among them, it is a
/// guide. Eager replicas whose anchors differ stay apart, below the limit too: that part of them has z = 1.
///
/// Throws c10::Error unless momentum, rounds_late (>= 0, eager >= 1) and replicas are in the ranges above. Own
/// derivation, for the outer steps of Douillard et al., 2025, arXiv:2501.18512 (delay) and Kale, Douillard et al.,
/// 2025, arXiv:2502.12996 (eager).
double largest_stable_lr(const OuterDynamics& dynamics);

}  // namespace outerloop
