#pragma once

#include <outerloop/codec.hpp>
#include <outerloop/communicator.hpp>
#include <outerloop/flat_params.hpp>
#include <outerloop/outer_rule.hpp>

/// The data flow of a round as free functions on flat vectors, for recipes of one's own:
///   params -> delta -> mean delta -> anchor -> params
/// This composition is the specification: the fused kernels of the optimizers equal it bit for bit. All functions run
/// on the calling thread and at::get_num_threads() workers, and give the same bits whatever the number of threads.

namespace outerloop {

/// delta = anchor - local; for bfloat16 and float16 parameters, anchor rounded to that type first. [n]
Tensor pseudogradient(const Tensor& anchor, const FlatParams& params);

/// What a replica tells the others about its delta before it travels.
struct DeltaSummary {
  double norm = 0;         ///< L2
  int64_t non_finite = 0;  ///< elements that are infinite or NaN
};
DeltaSummary summarize(const Tensor& delta);

/// tensor <- (1 / size) * sum over ranks of tensor. The tensor is contiguous, of a floating type, on the communicator's
/// device, of the same size on all ranks (Gloo ends the process if they differ): a flat delta, or a BatchNorm buffer.
/// The sum must be finite in that type, which for float16 is below 65520. Throws CommError, here or in wait().
Pending mean_across(Communicator& comm, Tensor tensor);

/// delta <- (1 / size) * sum over ranks of delta, by way of wires of `codec`, as rounds take it: in float32, in the
/// order of ranks, from what the wires say, and again from what the mean's own wire says, so that all ranks have the
/// same bits. The delta is float32, contiguous, on the CPU, of the same size on all ranks. `key` as in
/// Codec::encode, the same on all ranks. Throws c10::Error on every rank if one cannot do its part, as with a delta
/// that is not finite; CommError.
Pending mean_across(Communicator& comm, const Codec& codec, Tensor delta, uint64_t key = 0);

/// anchor <- anchor - mean_delta
void average_step(Tensor anchor, const Tensor& mean_delta);

/// velocity <- momentum * velocity + mean_delta
/// anchor   <- anchor - lr * (nesterov ? mean_delta + momentum * velocity : velocity)
void nesterov_step(Tensor anchor, Tensor velocity, const Tensor& mean_delta, double lr, double momentum,
                   bool nesterov = true);

/// A 64-bit sum over bits and places: equal vectors have equal fingerprints, and a change of one element changes it.
uint64_t fingerprint(const Tensor& flat);

}  // namespace outerloop
