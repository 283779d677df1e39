#pragma once

#include <outerloop/outer_rule.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "params/flat_params.hpp"
#include "round/exchange.hpp"

namespace outerloop::round {

/// Parameters on one device and of one type of state, with that state and the buffer their deltas travel in: one
/// collective.
struct Bucket {
  FlatParams params;
  OuterState state;
  Tensor wire;  ///< pinned if it is on the CPU and the parameters are not
};

/// The outer state of a set of parameters, and the three verbs of a round on it. float64 parameters have a bucket of
/// their own, as a float32 delta would cost them half their digits.
class Fragment {
 public:
  /// Anchors are the parameters as they are, slots zero; what `before` holds of the same parameters is taken over. The
  /// state is on `anchor_device`, or beside the parameters.
  Fragment(const std::vector<Tensor>& params, const std::vector<std::string>& labels, int slots,
           std::optional<at::Device> anchor_device, const Fragment* before = nullptr);

  kernels::Summary send(double weight);  ///< params -> delta -> wire
  void reduce(Exchange& exchange);       ///< wire -> sum over ranks of wire
  /// wire -> anchor -> params. The sum of squares of the mean delta goes to `sum_squares` unless that is null; then
  /// work on a GPU may still go on when this returns, ordered before what its current stream is given next.
  void apply(const OuterRule& rule, double total_weight, double keep_local, double* sum_squares);
  void rollback();                                     ///< params <- anchor
  void broadcast_state(Exchange& exchange, int root);  ///< anchor, slots <- those of root

  void share_anchors(Exchange& exchange, const std::vector<Tensor>& of);  ///< of these parameters: rank 0's to all

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

/// Where anchor, slots and wire of these parameters are.
at::Device state_device(const FlatParams& params, const std::optional<at::Device>& anchor_device);

/// The parameters that share a bucket, in buckets' order: devices as they come, of each all but float64, then float64;
/// empty buckets are left out.
std::vector<FlatParams> split(const std::vector<Tensor>& params);

}  // namespace outerloop::round
