#pragma once

#include "kernels/kernels.hpp"

/// kernels.hpp on the tensors' GPU and its current stream. Implemented by cuda.cpp, or by no_cuda.cpp in a build
/// without CUDA, where available() is false and the others throw c10::Error.

namespace outerloop::kernels::cuda {

bool available();

Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight);
void apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step,
           double* sum_squares);
void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                const Step& step, double* sum_squares);
void delta(Params& params, const Tensor& anchor, const Tensor& delta);
void gather(Params& params, const Tensor& flat);
void scatter(Params& params, const Tensor& flat, double keep_local);
void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step);
Summary summarize(const Tensor& flat);

}  // namespace outerloop::kernels::cuda
