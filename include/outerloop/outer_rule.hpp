#pragma once

#include <ATen/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace outerloop {

using at::Tensor;

/// What the replicas agree on: flat vectors of n elements, float32 (float64 for float64 parameters).
struct OuterState {
  Tensor anchor;              ///< the parameters agreed on last
  std::vector<Tensor> slots;  ///< the rule's own vectors, zero at first; Nesterov's is the velocity
  int64_t round = 0;          ///< rounds committed so far
};

/// How a mean delta moves the anchor. Stateless: what it remembers lives in OuterState::slots. A rule must do the same
/// to the same bits on every replica. Subclass it for other outer optimizers: step() then works on a copy of the state,
/// which replaces it when all of it is done; an exception goes to the caller, and that round is not held on this
/// replica.
class OuterRule {
 public:
  virtual ~OuterRule() = default;
  virtual int slots() const = 0;                                             ///< vectors of state it needs
  virtual void step(OuterState& state, const Tensor& mean_delta) const = 0;  ///< changes values of anchor and slots
  virtual std::string describe() const = 0;  ///< name and settings; compared between replicas and with checkpoints
};

/// anchor <- anchor - mean_delta. Local SGD (Stich, 2018, arXiv:1805.09767).
struct Average final : OuterRule {
  int slots() const override { return 0; }
  void step(OuterState& state, const Tensor& mean_delta) const override;
  std::string describe() const override;
};

/// velocity <- momentum * velocity + mean_delta
/// anchor   <- anchor - lr * (nesterov ? mean_delta + momentum * velocity : velocity)
/// DiLoCo (Douillard et al., 2023, arXiv:2311.08105); the recurrence of torch.optim.SGD. No velocity if momentum is 0.
struct Nesterov final : OuterRule {
  double lr;
  double momentum;
  bool nesterov;

  /// Throws c10::Error unless lr is finite and >= 0 and momentum is in [0, 1).
  explicit Nesterov(double lr = 0.7, double momentum = 0.9, bool nesterov = true);
  int slots() const override { return momentum == 0 ? 0 : 1; }
  void step(OuterState& state, const Tensor& mean_delta) const override;
  std::string describe() const override;
};

}  // namespace outerloop
