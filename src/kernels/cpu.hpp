#pragma once

#include <ATen/Tensor.h>

#include <cstdint>
#include <vector>

/// The element loops of a round on CPU tensors: fused (send, apply) and one by one. Formulas come from math.hpp. Flat
/// vectors are float32, or float64 when the parameters are; parameters are float32, bfloat16 and float16, or float64.
/// Loops run on at::get_num_threads() threads over blocks of fixed size, so that the bits do not depend on how many.

namespace outerloop::kernels {

using at::Tensor;

/// One parameter inside its flat vector: `numel` dense elements at `data`, first of them at `offset`.
struct Segment {
  void* data;
  at::ScalarType dtype;
  int64_t offset;
  int64_t numel;
};
using Segments = std::vector<Segment>;  // in ascending order, without gaps

struct Summary {
  double sum_squares = 0;    ///< of anchor - local
  int64_t non_finite = 0;    ///< elements of the wire
  uint64_t fingerprint = 0;  ///< of the anchor

  Summary& operator+=(const Summary& part) {
    sum_squares += part.sum_squares;
    non_finite += part.non_finite;
    fingerprint += part.fingerprint;
    return *this;
  }
};

struct Step {
  double inverse_weight = 1;  ///< 1 / total weight
  double lr = 1;
  double momentum = 0;
  bool nesterov = false;
  double keep_local = 0;
};

/// From this many elements on, apply writes params past the caches: they would not be found there again anyway. (What
/// send writes is read next, and its loop computes more per byte: there it gains nothing.)
inline constexpr int64_t stream_from = int64_t{1} << 22;

/// wire <- weight * (anchor - params).  12 bytes per element.
Summary send(const Segments& params, const Tensor& anchor, const Tensor& wire, double weight);

/// mean_delta = inverse_weight * wire; velocity, anchor <- outer step; params <- anchor (mixed by keep_local).
/// `velocity` is undefined for momentum 0. Returns the sum of squares of mean_delta.  24 bytes per element, 16 without
/// velocity.
double apply(const Segments& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
             const Step& step);

void delta(const Segments& params, const Tensor& anchor, const Tensor& delta);  ///< delta <- anchor - params
void gather(const Segments& params, const Tensor& flat);                        ///< flat <- params
void scatter(const Segments& params, const Tensor& flat, double keep_local);    ///< params <- flat, mixed
void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step);
Summary summarize(const Tensor& flat);  ///< of the vector itself: its squares, non-finite elements and fingerprint

}  // namespace outerloop::kernels
