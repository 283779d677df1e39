#pragma once

#include <outerloop/outerloop.hpp>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

namespace outerloop::testing {

/// Replica r minimizes 1/2 |p - targets[r]|^2 with p <- p - lr (p - targets[r]).
struct Quadratic {
  Tensor start;
  std::vector<Tensor> targets;
  double lr = 0.5;
  int ranks() const { return static_cast<int>(targets.size()); }
  /// The magnitude of the numbers a parameter is made of: its rounding errors are in steps of these, also where it
  /// passes zero itself.
  Tensor scale() const { return torch::cat({start.unsqueeze(0), torch::stack(targets)}).abs().amax(0); }
};

inline Quadratic exact_problem(int ranks, at::ScalarType type = at::kFloat) {
  Quadratic problem{.start = eighths({7}, 1, type), .targets = {}};
  for (int rank = 0; rank < ranks; ++rank) problem.targets.push_back(eighths({7}, 100 + rank, type));
  return problem;
}
inline Quadratic rounding_problem(int ranks, at::ScalarType type = at::kFloat) {
  Quadratic problem{.start = normal({97}, 1, type), .targets = {}, .lr = 0.1};
  for (int rank = 0; rank < ranks; ++rank) problem.targets.push_back(normal({97}, 100 + rank, type));
  return problem;
}

using Path = std::vector<Tensor>;  ///< the parameter after every step

/// One step with this gradient.
inline void step(torch::optim::Optimizer& optimizer, Tensor& p, const Tensor& gradient) {
  p.mutable_grad() = gradient;
  optimizer.step();
}

/// What each replica's parameter does in `steps` steps of the optimizer that wrap(inner SGD, communicator) returns.
template <class Wrap>
std::vector<Path> train(const Quadratic& problem, int steps, Wrap wrap) {
  return run_ranks(problem.ranks(), [&](std::shared_ptr<Communicator> comm) {
    Tensor p = parameter(problem.start);
    const Tensor target = problem.targets[comm->rank()];
    auto optimizer = wrap(torch::optim::SGD({p}, problem.lr), comm);
    Path path;
    for (int t = 0; t < steps; ++t) {
      step(optimizer, p, p.detach() - target);
      path.push_back(p.detach().clone());
    }
    return path;
  });
}

/// The same, of DiLoCo and local SGD.
inline std::vector<Path> train_diloco(const Quadratic& problem, int steps, const DiLoCoOptions& options) {
  return train(problem, steps,
               [&](torch::optim::SGD inner, auto comm) { return DiLoCoOptimizer(std::move(inner), comm, options); });
}
inline std::vector<Path> train_local_sgd(const Quadratic& problem, int steps, const LocalSGDOptions& options) {
  return train(problem, steps,
               [&](torch::optim::SGD inner, auto comm) { return LocalSGDOptimizer(std::move(inner), comm, options); });
}

}  // namespace outerloop::testing
