#pragma once

#include <outerloop/outer_loop.hpp>

#include <concepts>

namespace outerloop {

/// Defaults are the paper's, for many replicas or large batches. For two replicas with small batches, outer_lr 0.7 and
/// outer_momentum 0.6 are better: the long-run gain outer_lr / (1 - outer_momentum) should be little above
/// sqrt(replicas).
struct DiLoCoOptions {
  int64_t sync_every = 100;     ///< inner steps between rounds
  double outer_lr = 0.7;        ///< >= 0
  double outer_momentum = 0.9;  ///< in [0, 1); 0 needs no velocity
  bool nesterov = true;         ///< false: heavy ball
  Streaming streaming = {};
  SyncOptions sync = {};
};

/// DiLoCo (Douillard et al., 2023, arXiv:2311.08105): LocalSGDOptimizer with an outer Nesterov step on the anchor.
class DiLoCoOptimizer final : public OuterLoopOptimizer {
 public:
  DiLoCoOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm, DiLoCoOptions options = {});
  template <std::derived_from<Optimizer> Inner>
  DiLoCoOptimizer(Inner inner, std::shared_ptr<Communicator> comm, DiLoCoOptions options = {})
      : DiLoCoOptimizer(std::make_unique<Inner>(std::move(inner)), std::move(comm), std::move(options)) {}
};

}  // namespace outerloop
