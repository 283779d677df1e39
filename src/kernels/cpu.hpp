#pragma once

#include "kernels/kernels.hpp"

/// kernels.hpp on the CPU, over blocks of fixed size, so that the bits do not depend on how many threads there are.

namespace outerloop::kernels::cpu {

/// From this many elements on, apply writes params past the caches: they would not be found there again anyway. (What
/// send writes is read next, and its loop computes more per byte: there it gains nothing. Nor does it for the velocity
/// of step_apart, one stream in five.)
inline constexpr int64_t stream_from = int64_t{1} << 22;

/// `first`: the place of the vectors' first element in the whole, where they are a part, for the fingerprint. A
/// multiple of the block size.
Summary send(const Segments& params, const Tensor& anchor, const Tensor& wire, double weight, int64_t first = 0);
double apply(const Segments& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
             const Step& step);
/// apply() on elements [begin, end) alone, whose mean delta lies at `mean_delta`; `velocity` is null for momentum 0.
double apply_range(const Segments& params, float* anchor, float* velocity, const float* mean_delta, int64_t begin,
                   int64_t end, const Step& step, bool past_caches);
double step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                  const Step& step);
void delta(const Segments& params, const Tensor& anchor, const Tensor& delta);
void gather(const Segments& params, const Tensor& flat);
void scatter(const Segments& params, const Tensor& flat, double keep_local);
void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step);
Summary summarize(const Tensor& flat);

}  // namespace outerloop::kernels::cpu
