#pragma once

#include <outerloop/communicator.hpp>
#include <outerloop/outer_rule.hpp>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu.hpp"
#include "params/flat_params.hpp"

namespace outerloop::round {

/// Parameters of one type of state, with that state and the buffer their deltas travel in: one collective.
struct Bucket {
  FlatParams params;
  OuterState state;
  Tensor wire;
};

/// The outer state of a set of parameters, and the three verbs of a round on it. float64 parameters have a bucket of
/// their own, as a float32 delta would cost them half their digits.
class Fragment {
 public:
  /// Anchors are the parameters as they are, slots zero; what `before` holds of the same parameters is taken over.
  Fragment(const std::vector<Tensor>& params, const std::vector<std::string>& labels, int slots,
           const Fragment* before = nullptr);

  kernels::Summary send(double weight);  ///< params -> delta -> wire
  void reduce(Communicator& comm);       ///< wire -> sum over ranks of wire
  double apply(const OuterRule& rule, double total_weight,
               double keep_local);                     ///< wire -> anchor -> params; sum of squares of the mean delta
  void rollback();                                     ///< params <- anchor
  void broadcast_state(Communicator& comm, int root);  ///< anchor, slots <- those of root

  void share_anchors(Communicator& comm, const std::vector<Tensor>& of);  ///< of these parameters: rank 0's to all

  bool holds(const std::vector<Tensor>& params) const;  ///< exactly these tensors, in this order
  uint64_t fingerprint() const;                         ///< of the anchor, as send() tells it
  int64_t rounds() const { return buckets_[0].state.round; }
  void set_rounds(int64_t rounds);
  int64_t numel() const;
  int64_t wire_bytes() const;
  std::vector<Tensor> anchors() const;  ///< copies, one per parameter, in its shape
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Tensor>& params() const { return params_; }

 private:
  std::vector<Tensor> params_;
  std::vector<Bucket> buckets_;
};

/// The parameters that share a bucket, in buckets' order: all but float64, then float64; empty ones are left out.
std::vector<FlatParams> split_by_state_type(const std::vector<Tensor>& params);

}  // namespace outerloop::round
