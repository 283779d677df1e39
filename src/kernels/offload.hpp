#pragma once

#include "kernels/kernels.hpp"

/// kernels.hpp for parameters on a GPU whose flat vectors stay in the CPU's memory: only parameters cross the bus, 4
/// bytes per float32 element each way and round, while the CPU works on the chunk before. No memory of the GPU is
/// needed.

namespace outerloop::kernels::offload {

Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight);
double apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step);
void delta(Params& params, const Tensor& anchor, const Tensor& delta);
void gather(Params& params, const Tensor& flat);
void scatter(Params& params, const Tensor& flat, double keep_local);

}  // namespace outerloop::kernels::offload
