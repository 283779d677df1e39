#pragma once

#include <optional>
#include <vector>

#include "round/fragment.hpp"

namespace outerloop::round {

/// The fragments of all trainable parameters: every element is in one of them.
class Fragments {
 public:
  /// What `before` holds of the same elements is taken over, and the counts of rounds; it is of the same group.
  Fragments(std::vector<Tensor> params, const std::vector<std::vector<ParamSlice>>& slices, int slots,
            const SyncOptions& sync, const Exchange& exchange, const Fragments* before = nullptr);

  std::vector<Fragment>& each() { return each_; }
  const std::vector<Fragment>& each() const { return each_; }
  Fragment& operator[](size_t index) { return each_[index]; }
  size_t size() const { return each_.size(); }

  const std::vector<Tensor>& params() const { return params_; }
  bool holds(const std::vector<Tensor>& params) const;  ///< exactly these tensors, in this order
  int64_t rounds() const;                               ///< of all fragments together
  uint64_t fingerprint() const;                         ///< of all anchors
  std::vector<Tensor> anchors() const;                  ///< copies, one per parameter, in its shape
  void broadcast_state(Exchange& exchange, int root);   ///< anchors, slots and counts of rounds <- those of root
  void share_anchors(Exchange& exchange, const std::vector<Tensor>& of);  ///< of these parameters: rank 0's to all

 private:
  std::vector<Tensor> params_;
  std::vector<Fragment> each_;
};

}  // namespace outerloop::round
