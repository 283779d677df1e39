#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <cmath>

#include <outerloop/stages.hpp>

#include "codec/known.hpp"
#include "comm/staged.hpp"
#include "kernels/kernels.hpp"
#include "params/flat_params.hpp"
#include "round/coded_wire.hpp"

namespace outerloop {

namespace {

void check_flat(const char* name, const Tensor& flat) {
  TORCH_CHECK(flat.defined() && flat.is_contiguous() && kernels::runs_on(flat.device()) &&
                  (flat.scalar_type() == at::kFloat || flat.scalar_type() == at::kDouble),
              name, " must be a contiguous float32 or float64 vector on ",
              kernels::runs_on(at::kCUDA) ? "the CPU or a GPU" : "the CPU", ", got ",
              flat.defined() ? c10::str(flat.scalar_type(), flat.sizes(), " on ", flat.device()) : "none");
}

void check_same(const char* name, const Tensor& flat, int64_t numel, at::ScalarType dtype) {
  check_flat(name, flat);
  TORCH_CHECK(flat.numel() == numel && flat.scalar_type() == dtype, name, " must be ", dtype, " of ", numel,
              " elements, got ", flat.scalar_type(), " of ", flat.numel());
}

void check_beside(const char* name, const Tensor& flat, const Tensor& anchor) {
  check_same(name, flat, anchor.numel(), anchor.scalar_type());
  TORCH_CHECK(flat.device() == anchor.device(), name, " is on ", flat.device(), " and anchor on ", anchor.device());
}

}  // namespace

Tensor pseudogradient(const Tensor& anchor, const FlatParams& params) {
  check_same("anchor", anchor, params.numel(), params.dtype());
  Tensor delta = at::empty_like(anchor);
  kernels::delta(params.impl().pull(), anchor, delta);
  return delta;
}

DeltaSummary summarize(const Tensor& delta) {
  check_flat("delta", delta);
  const kernels::Summary summary = kernels::summarize(delta);
  return {std::sqrt(summary.sum_squares), summary.non_finite};
}

Pending mean_across(Communicator& comm, Tensor tensor) {
  TORCH_CHECK(tensor.defined() && tensor.is_floating_point(), "mean_across: needs a tensor of a floating type");
  std::shared_ptr<comm::Staged> staged;
  if (tensor.device() != comm.device() && comm.size() > 1) {
    staged = std::make_shared<comm::Staged>(comm, tensor.device());
  }
  auto sum = std::make_shared<Pending>((staged ? *staged : comm).all_reduce_sum(tensor));
  return Pending([sum, staged, tensor, size = comm.size()]() mutable {
    sum->wait();
    tensor.detach().mul_(1.0 / size);
  });
}

Pending mean_across(Communicator& comm, const Codec& codec, Tensor delta, uint64_t key) {
  check_same("delta", delta, delta.defined() ? delta.numel() : 0, at::kFloat);
  TORCH_CHECK(delta.is_cpu(), "delta is on ", delta.device(), "; codecs run on the CPU");
  if (codec::is_plain(codec)) return mean_across(comm, delta);
  const auto staged =
      comm.device().is_cpu() || comm.size() == 1 ? nullptr : std::make_unique<comm::Staged>(comm, at::kCPU);
  round::CodedWire wire(codec, delta.numel(), comm.size(), comm.rank());
  const uint64_t draws = round::draws_of({static_cast<int64_t>(key), comm.rank()});  // of each rank its own
  std::exception_ptr error;
  try {
    wire.encode(codec, delta, draws);
  } catch (...) {
    if (comm.size() == 1) throw;
    error = std::current_exception();  // the other ranks are told in the exchange
  }
  const int failed =
      wire.average(codec, staged ? *staged : comm, std::vector<double>(comm.size(), 1), {}, draws, delta, error);
  if (error) std::rethrow_exception(error);
  if (failed < 0 && wire.fused()) wire.decode(codec, delta);
  TORCH_CHECK(failed < 0, "mean_across: rank ", failed, " could not average deltas by codec ", codec.describe());
  return {};
}

void average_step(Tensor anchor, const Tensor& mean_delta) {
  check_flat("anchor", anchor);
  check_beside("mean_delta", mean_delta, anchor);
  kernels::step(anchor, {}, mean_delta, {});
}

void nesterov_step(Tensor anchor, Tensor velocity, const Tensor& mean_delta, double lr, double momentum,
                   bool nesterov) {
  check_flat("anchor", anchor);
  check_beside("mean_delta", mean_delta, anchor);
  TORCH_CHECK(velocity.defined() || momentum == 0, "nesterov_step: momentum ", momentum, " needs a velocity");
  if (velocity.defined()) check_beside("velocity", velocity, anchor);
  kernels::step(anchor, velocity, mean_delta, {.lr = lr, .momentum = momentum, .nesterov = nesterov});
}

uint64_t fingerprint(const Tensor& flat) {
  check_flat("flat", flat);
  return kernels::summarize(flat).fingerprint;
}

}  // namespace outerloop
