#pragma once

#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/wires.hpp"

/// The fused passes of rounds whose wires the kernels know, with all of it on the CPU: send, reduce and apply, each of
/// which reads what it needs once, a tile at a time, to the same bits as stage by stage.

namespace outerloop::kernels {

/// A vector of `numel` elements as coded shards: row r of uint8 `rows` begins with the wire of the elements
/// [r length, (r + 1) length), as far as there are such. Draws of shard r have the key `key` + r.
struct CodedRows {
  const WireFormat& format;
  Tensor rows;
  int64_t numel, length;
  uint64_t key = 0;
};

/// Error feedback: next <- sent - what its code stands for, where sent has decay * residual in it. Both are float32 or
/// bfloat16, undefined without feedback.
struct Owed {
  Tensor residual, next;
  double decay = 0;
};

/// rows <- anchor - params + decay * residual. The summary is of the delta, but that non-finite elements are those of
/// what is sent, as it arrives.  8 bytes per element and those of codes; 16 with float32 residuals.
Summary send(const Params& params, const Tensor& anchor, const CodedRows& rows, const Owed& owed);

/// mean <- (sum over rows r of `arrived`, in their order, of weights[r] * arrived[r]) * the inverse of the sum of all
/// weights + decay * residual, of one shard that `mean` has as its only row. Returns whether it is finite.
bool reduce(const CodedRows& arrived, const std::vector<double>& weights, const CodedRows& mean, const Owed& owed);

/// As apply(), with a mean delta that is decoded on the way.  20 bytes per element and those of codes.
double apply(const Params& params, const Tensor& anchor, const Tensor& velocity, const CodedRows& mean,
             const Step& step);

}  // namespace outerloop::kernels
