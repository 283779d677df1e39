#pragma once

#include <outerloop/outer_loop.hpp>

#include <concepts>

namespace outerloop {

struct LocalSGDOptions {
  int64_t sync_every = 16;  ///< inner steps between rounds
  SyncOptions sync = {};
};

/// Local SGD (Stich, 2018, arXiv:1805.09767): every sync_every steps, params <- mean over replicas of params.
/// The mean is taken of deltas from a shared anchor, so that a round can abort and roll back.
class LocalSGDOptimizer final : public OuterLoopOptimizer {
 public:
  LocalSGDOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm, LocalSGDOptions options = {});
  template <std::derived_from<Optimizer> Inner>
  LocalSGDOptimizer(Inner inner, std::shared_ptr<Communicator> comm, LocalSGDOptions options = {})
      : LocalSGDOptimizer(std::make_unique<Inner>(std::move(inner)), std::move(comm), std::move(options)) {}
};

}  // namespace outerloop
