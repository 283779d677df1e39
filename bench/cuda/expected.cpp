#include "expected.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <outerloop/flat_params.hpp>

#include "kernels/kernels.hpp"
#include "params/flat_params.hpp"

namespace outerloop::bench {

namespace {

constexpr int64_t length = 1'000'003;  // a prime: no chunk or tensor sees the same stretch from the same place

}  // namespace

Numbers::Numbers(at::ScalarType of_params, at::Device device) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  anchor = at::randn({length}, random);
  for (Tensor& of_round : local) of_round = (anchor + 0.1 * at::randn({length}, random)).to(of_params).to(device);
  anchor = anchor.to(device);
}

void fill(const Tensor& vector, int64_t first, const Tensor& numbers) {
  for (int64_t done = 0; done < vector.numel();) {
    const int64_t from = (first + done) % numbers.numel();
    const int64_t count = std::min(vector.numel() - done, numbers.numel() - from);
    vector.narrow(0, done, count).copy_(numbers.narrow(0, from, count));
    done += count;
  }
}

Expected::Expected(at::ScalarType of_params) {
  const Numbers numbers(of_params, at::kCPU);
  anchor = numbers.anchor.clone();
  velocity = at::zeros_like(anchor);
  wire = at::empty_like(anchor);
  params = at::empty_like(numbers.local[0]);
  const FlatParams flat({params});
  for (const Tensor& local : numbers.local) {
    params.copy_(local);
    kernels::send(flat.impl().pull(), anchor, wire, 1);
    kernels::apply(flat.impl().pull(), anchor, velocity, wire,
                   {.inverse_weight = 1.0 / replicas, .lr = lr, .momentum = momentum, .nesterov = true});
  }
}

Expected Expected::to(at::Device device) const {
  Expected there;
  there.anchor = anchor.to(device);
  there.velocity = velocity.to(device);
  there.wire = wire.to(device);
  there.params = params.to(device);
  return there;
}

}  // namespace outerloop::bench
