#pragma once

#include <ATen/Tensor.h>

namespace outerloop::codec {

using at::Tensor;

/// What error feedback keeps of rounds that committed; undefined without.
struct Residuals {
  Tensor own = {};          ///< of this replica's deltas
  Tensor owner = {};        ///< of the means of the shard that this rank owns; none before the first
  int64_t owner_begin = 0;  ///< of the shard
  int ranks = 1, rank = 0;  ///< of the group that this is of

  /// Both in one, of this replica's own: over all replicas the same part of the mean.
  Tensor folded() const;
  /// Shards may be others' now, and more or fewer replicas share the mean: folded, unless all is as it was.
  void follow(int ranks_now, int rank_now);
};

}  // namespace outerloop::codec
