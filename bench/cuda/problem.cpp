#include "problem.hpp"

#include <c10/cuda/CUDAStream.h>

#include "cuda/check.hpp"
#include "kernels/kernels.hpp"
#include "params/flat_params.hpp"
#include "torchft.hpp"

namespace outerloop::bench {

namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

at::TensorOptions on_gpu(at::ScalarType type) { return at::TensorOptions().dtype(type).device(at::kCUDA); }

std::vector<Tensor> apart(const std::vector<Tensor>& views, at::ScalarType type) {
  std::vector<Tensor> tensors;
  for (const Tensor& view : views) tensors.push_back(at::empty({view.numel()}, on_gpu(type)));
  return tensors;
}

bool same(const Tensor& vector, int64_t first, const Tensor& numbers, double tolerance, bool on_cpu) {
  for (int64_t done = 0; done < vector.numel();) {
    const int64_t from = (first + done) % numbers.numel();
    const int64_t count = std::min(vector.numel() - done, numbers.numel() - from);
    Tensor got = vector.narrow(0, done, count), right = numbers.narrow(0, from, count);
    if (on_cpu) got = got.cpu(), right = right.cpu();
    if (!(tolerance == 0 ? at::equal(got, right) : at::allclose(got, right, tolerance, tolerance))) return false;
    done += count;
  }
  return true;
}

}  // namespace

Problem::Problem(int64_t numel, int64_t tensors, const Numbers& numbers)
    : numbers_(numbers),
      anchor_(at::empty({numel}, on_gpu(at::kFloat))),
      velocity_(at::empty_like(anchor_)),
      wire_(at::empty_like(anchor_)),
      anchors_(anchor_.tensor_split(tensors)),
      velocities_(velocity_.tensor_split(tensors)),
      deltas_(wire_.tensor_split(tensors)),
      flat_(params_ = apart(anchors_, numbers.local[0].scalar_type())) {
  const cuda::Type type = params_[0].scalar_type() == at::kFloat ? cuda::Type::float32 : cuda::Type::bfloat16;
  std::vector<cuda::Run> runs;
  int64_t offset = 0;
  for (const Tensor& param : params_) {
    runs.push_back({param.mutable_data_ptr(), offset, param.numel()});
    offset += param.numel();
  }
  std::vector<cuda::Chunk> chunks = cuda::cut(runs, type);
  const auto bytes = [](size_t count) { return at::empty({static_cast<int64_t>(count)}, on_gpu(at::kByte)); };
  chunks_ = bytes(chunks.size() * sizeof(cuda::Chunk));
  workspace_ = bytes(cuda::workspace_bytes());
  OUTERLOOP_CUDA_CHECK(cudaMemcpy(chunks_.mutable_data_ptr(), chunks.data(), chunks_.nbytes(), cudaMemcpyHostToDevice));
  OUTERLOOP_CUDA_CHECK(cudaMemsetAsync(workspace_.mutable_data_ptr(), 0, workspace_.nbytes(), stream()));
  table_ = {static_cast<const cuda::Chunk*>(chunks_.const_data_ptr()), static_cast<int64_t>(chunks.size()), type};
  fill(wire_, 0, numbers_.anchor);
  reset();
}

void Problem::reset() {
  fill(anchor_, 0, numbers_.anchor);
  OUTERLOOP_CUDA_CHECK(cudaMemsetAsync(velocity_.mutable_data_ptr(), 0, velocity_.nbytes(), stream()));
  inner_steps(0);
  for (size_t i = 0; i < params_.size(); ++i) params_[i].mutable_grad() = Tensor();
  sgd_ = std::make_unique<torch::optim::SGD>(params_, torch::optim::SGDOptions(lr).momentum(momentum).nesterov(true));
}

void Problem::inner_steps(size_t round) {
  int64_t first = 0;
  for (const Tensor& param : params_) {
    fill(param, first, numbers_.local.at(round));
    first += param.numel();
  }
}

void Problem::copy() {
  OUTERLOOP_CUDA_CHECK(cudaMemcpyAsync(wire_.mutable_data_ptr(), anchor_.const_data_ptr(), wire_.nbytes(),
                                       cudaMemcpyDeviceToDevice, stream()));
}

void Problem::send() {
  auto* const workspace = static_cast<cuda::Workspace*>(workspace_.mutable_data_ptr());
  cuda::send({table_, anchor_.const_data_ptr(), wire_.mutable_data_ptr(), 1, {workspace, false}}, stream());
}

void Problem::apply() {
  cuda::apply({.params = table_,
               .anchor = anchor_.mutable_data_ptr(),
               .velocity = velocity_.mutable_data_ptr(),
               .wire = wire_.const_data_ptr(),
               .inverse_weight = 1.0 / replicas,
               .lr = lr,
               .momentum = momentum,
               .nesterov = true,
               .keep_local = 0,
               .sum = {static_cast<cuda::Workspace*>(workspace_.mutable_data_ptr()), false}},
              stream());
}

void Problem::outer_step() {
  kernels::send(flat_.impl().pull(), anchor_, wire_, 1);
  kernels::apply(flat_.impl().pull(), anchor_, velocity_, wire_,
                 {.inverse_weight = 1.0 / replicas, .lr = lr, .momentum = momentum, .nesterov = true});
  flat_.impl().push();
}

void Problem::chain() {
  for (size_t i = 0; i < params_.size(); ++i) at::sub_out(deltas_[i], anchors_[i], params_[i]);
  for (size_t i = 0; i < params_.size(); ++i) params_[i].copy_(anchors_[i]);
  for (size_t i = 0; i < params_.size(); ++i) {
    deltas_[i].div_(replicas);
    params_[i].mutable_grad() = deltas_[i];
  }
  sgd_->step();
  for (size_t i = 0; i < params_.size(); ++i) anchors_[i].copy_(params_[i]);
}

void Problem::composition() {
  at::_fused_sgd_(anchors_, at::_foreach_sub(anchors_, params_), velocities_, 0, momentum, lr / replicas, 0,
                  /*nesterov=*/true, /*maximize=*/false, /*is_first_step=*/false);
  at::_foreach_copy_(params_, anchors_);
}

void Problem::torchft() {
  torchft_passes(params_, anchors_, velocities_, replicas, lr, momentum, [](const std::vector<Tensor>&) {});
}

bool Problem::agrees(const Expected& expected, double tolerance, bool on_cpu) const {
  bool agree = same(anchor_, 0, expected.anchor, tolerance, on_cpu);
  if (tolerance == 0) {
    agree = agree && same(wire_, 0, expected.wire, 0, on_cpu) && same(velocity_, 0, expected.velocity, 0, on_cpu);
  }
  int64_t first = 0;
  for (const Tensor& param : params_) {
    agree = agree && same(param, first, expected.params, tolerance, on_cpu);
    first += param.numel();
  }
  return agree;
}

}  // namespace outerloop::bench
