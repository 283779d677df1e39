#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace outerloop::testing {

using at::Tensor;
using Sizes = std::vector<int64_t>;
using Types = std::vector<at::ScalarType>;

inline constexpr int64_t block = 32768;  ///< elements that the kernels take at a time

/// Sanitizers slow the shim's kernels down, ASan to a fifth, TSan to a twentieth: with them there are fewer cases.
#ifdef __SANITIZE_THREAD__
inline constexpr bool under_tsan = true;
#else
inline constexpr bool under_tsan = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool under_sanitizer = true;
#else
inline constexpr bool under_sanitizer = under_tsan;
#endif

/// Random parameters of the given sizes, of the given types in turn. Each begins one to three elements into its
/// storage, so that vector loops meet every misalignment.
inline std::vector<Tensor> unaligned_params(const Sizes& sizes, const Types& types) {
  std::vector<Tensor> params;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t lead = 1 + static_cast<int64_t>(i % 3);
    params.push_back(at::randn({lead + sizes[i]}, types[i % types.size()]).slice(0, lead));
  }
  return params;
}

inline std::vector<Tensor> unaligned_copies(const std::vector<Tensor>& params) {
  std::vector<Tensor> copies;
  for (const Tensor& param : params) {
    const int64_t lead = param.storage_offset();
    copies.push_back(at::empty({lead + param.numel()}, param.options()).slice(0, lead).copy_(param));
  }
  return copies;
}

/// Its values, also where a device has no kernels of libtorch's own: allocations are copied as a whole.
inline Tensor copy_to_cpu(const Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const int64_t lead = tensor.storage_offset();
  const Tensor whole = tensor.as_strided({lead + tensor.numel()}, {1}, 0);
  return at::empty(whole.sizes(), whole.options().device(at::kCPU)).copy_(whole).slice(0, lead);
}

/// Success if both hold the same bits; else names the first element that differs.
inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.numel() != b.numel()) return ::testing::AssertionFailure() << "types or sizes differ";
  const Tensor x = a.contiguous(), y = b.contiguous();
  const int64_t width = a.element_size();
  const auto* p = static_cast<const char*>(x.const_data_ptr());
  const auto* q = static_cast<const char*>(y.const_data_ptr());
  if (a.numel() == 0 || std::memcmp(p, q, a.numel() * width) == 0) return ::testing::AssertionSuccess();
  int64_t i = 0;
  while (std::memcmp(p + i * width, q + i * width, width) == 0) ++i;
  return ::testing::AssertionFailure() << "element " << i << " of " << a.numel() << ": "
                                       << x.flatten()[i].item<double>() << " and " << y.flatten()[i].item<double>();
}

inline ::testing::AssertionResult same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " tensors";
  for (size_t i = 0; i < a.size(); ++i) {
    const auto same = same_bits(a[i], b[i]);
    if (!same) return ::testing::AssertionFailure() << "tensor " << i << ", " << same.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace outerloop::testing
