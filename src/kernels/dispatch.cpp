#include <c10/util/Exception.h>

#include "kernels/cpu.hpp"
#include "kernels/cuda.hpp"
#include "kernels/kernels.hpp"
#include "kernels/offload.hpp"

namespace outerloop::kernels {

namespace {

enum class Where { cpu, cuda, offload };

/// Where parameters and a flat vector meet.
Where where(const Params& params, const Tensor& flat) {
  if (params.device == flat.device()) return flat.is_cpu() ? Where::cpu : Where::cuda;
  TORCH_CHECK(flat.is_cpu(), "a flat vector is on ", flat.device(), " and its parameters are on ", params.device,
              "; it must be there too, or on the CPU");
  return Where::offload;
}

}  // namespace

Summary send(Params& params, const Tensor& anchor, const Tensor& wire, double weight) {
  switch (where(params, anchor)) {
    case Where::cuda:
      return cuda::send(params, anchor, wire, weight);
    case Where::offload:
      return offload::send(params, anchor, wire, weight);
    case Where::cpu:
      break;
  }
  return cpu::send(params.segments, anchor, wire, weight);
}

void apply(Params& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Step& step,
           double* sum_squares) {
  double sum = 0;
  switch (where(params, anchor)) {
    case Where::cuda:
      return cuda::apply(params, anchor, velocity, wire, step, sum_squares);
    case Where::offload:
      sum = offload::apply(params, anchor, velocity, wire, step);
      break;
    case Where::cpu:
      sum = cpu::apply(params.segments, anchor, velocity, wire, step);
      break;
  }
  if (sum_squares) *sum_squares = sum;
}

void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                const Step& step, double* sum_squares) {
  if (!anchor.is_cpu()) return cuda::step_apart(anchor, velocity, wire, next_velocity, step, sum_squares);
  const double sum = cpu::step_apart(anchor, velocity, wire, next_velocity, step);
  if (sum_squares) *sum_squares = sum;
}

void delta(Params& params, const Tensor& anchor, const Tensor& delta) {
  switch (where(params, anchor)) {
    case Where::cuda:
      return cuda::delta(params, anchor, delta);
    case Where::offload:
      return offload::delta(params, anchor, delta);
    case Where::cpu:
      return cpu::delta(params.segments, anchor, delta);
  }
}

void gather(Params& params, const Tensor& flat) {
  switch (where(params, flat)) {
    case Where::cuda:
      return cuda::gather(params, flat);
    case Where::offload:
      return offload::gather(params, flat);
    case Where::cpu:
      return cpu::gather(params.segments, flat);
  }
}

void scatter(Params& params, const Tensor& flat, double keep_local) {
  switch (where(params, flat)) {
    case Where::cuda:
      return cuda::scatter(params, flat, keep_local);
    case Where::offload:
      return offload::scatter(params, flat, keep_local);
    case Where::cpu:
      return cpu::scatter(params.segments, flat, keep_local);
  }
}

void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step) {
  anchor.is_cpu() ? cpu::step(anchor, velocity, mean_delta, step) : cuda::step(anchor, velocity, mean_delta, step);
}

Summary summarize(const Tensor& flat) { return flat.is_cpu() ? cpu::summarize(flat) : cuda::summarize(flat); }

bool runs_on(at::Device device) { return device.is_cpu() || (device.is_cuda() && cuda::available()); }

}  // namespace outerloop::kernels
