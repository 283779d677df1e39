#pragma once

#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace outerloop::testing {

using at::Tensor;

/// Equal in shape, type and every bit, NaN and the sign of zero included.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}
inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

/// Multiples of 1/8 in [-4, 4): float32 holds exactly what a few sums, halvings and means over 2 or 4 make of them.
inline Tensor eighths(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return torch::randint(-32, 32, shape, at::detail::createCPUGenerator(seed), torch::dtype(type)) / 8;
}

/// Numbers that use every bit of their type.
inline Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed), torch::dtype(type));
}

/// A leaf with a copy of these values, for an optimizer.
inline Tensor parameter(const Tensor& values) { return values.detach().clone().set_requires_grad(true); }

/// The largest |a - b|, in steps of a's type (float32 or float64) at the largest magnitude among a, b and `scale`.
inline double ulps(const Tensor& a, const Tensor& b, const Tensor& scale) {
  const bool single = a.scalar_type() == at::kFloat;
  const Tensor magnitude = torch::maximum(torch::maximum(a.abs(), b.to(a).abs()), scale.to(a).abs()).detach();
  const Tensor infinity = torch::full_like(magnitude, INFINITY);
  const Tensor step = (torch::nextafter(magnitude, infinity) - magnitude).to(at::kDouble);
  TORCH_CHECK(single || a.scalar_type() == at::kDouble, "ulps: float32 or float64, got ", a.scalar_type());
  return ((a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs() / step).max().item<double>();
}
inline double ulps(const Tensor& a, const Tensor& b) { return ulps(a, b, torch::zeros_like(a)); }

}  // namespace outerloop::testing
