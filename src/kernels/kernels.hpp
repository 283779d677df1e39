#pragma once

#include <ATen/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

/// The element loops of a round: fused (send, apply) and one by one. Formulas come from math.hpp. Flat vectors are
/// float32, or float64 when the parameters are; parameters are float32, bfloat16 and float16, or float64. The tensors
/// say where a loop runs:
///   - parameters and flat vectors on the CPU: there, on at::get_num_threads() threads (cpu.hpp);
///   - both on one GPU: there, on its current stream (cuda.hpp); the host waits where a sum is returned, and only
///   there;
///   - parameters on a GPU, flat vectors on the CPU: on the CPU, through pinned memory (offload.hpp).
/// The bits do not depend on which, nor on the number of threads, but for the last ones of sums of squares.

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

/// The parameters of a flat vector, all on one device.
struct Params {
  Segments segments;
  at::Device device = at::kCPU;
  std::shared_ptr<void> on_device = {}, buffers = {};  ///< what cuda.cpp and offload.cpp keep from one call to the next
};

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

/// wire <- weight * (anchor - params).  12 bytes per element.
Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight);

/// mean_delta = inverse_weight * wire; velocity, anchor <- outer step; params <- anchor (mixed by keep_local).
/// `velocity` is undefined for momentum 0. The sum of squares of mean_delta goes to `sum_squares`; null: nobody asks,
/// and on a GPU the host does not wait.  24 bytes per element, 16 without velocity.
void apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step,
           double* sum_squares = nullptr);

/// mean_delta = inverse_weight * wire; next_velocity <- velocity after the outer step, wire <- anchor after it, to the
/// same bits as in apply. Anchor and velocity stay as they are: nothing is decided yet. Vectors alone, of one length,
/// which do not overlap and may begin at any element. Without momentum both velocities are undefined. `sum_squares` as
/// in apply.  20 bytes per element, 12 without velocity.
void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                const Step& step, double* sum_squares = nullptr);

void delta(Params& params, const Tensor& anchor, const Tensor& delta);  ///< delta <- anchor - params
void gather(Params& params, const Tensor& flat);                        ///< flat <- params
void scatter(Params& params, const Tensor& flat, double keep_local);    ///< params <- flat, mixed
void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step);
Summary summarize(const Tensor& flat);  ///< of the vector itself: its squares, non-finite elements and fingerprint

bool runs_on(at::Device device);  ///< CPU; CUDA, where this build has it

}  // namespace outerloop::kernels
