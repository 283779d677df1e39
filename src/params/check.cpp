#include "params/check.hpp"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace outerloop::params {

namespace {

/// The bytes of memory a tensor's elements lie in, gaps included.
struct Extent {
  const char* begin;
  const char* end;
  size_t index;
};

Extent extent(const at::Tensor& tensor, size_t index) {
  int64_t span = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + span * static_cast<int64_t>(tensor.element_size()), index};
}

/// In memory order, each dimension must step over all of the smaller ones.
bool overlaps_itself(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t span = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < span) return true;
    span += (size - 1) * stride;
  }
  return false;
}

}  // namespace

std::string label(size_t index, const std::vector<std::string>& names) {
  return index < names.size() ? c10::str("parameter ", index, " '", names[index], "'") : c10::str("parameter ", index);
}

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void check(const std::vector<at::Tensor>& params, const std::vector<std::string>& names) {
  std::vector<Extent> extents;
  std::vector<std::pair<const void*, size_t>> identities;
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& param = params[i];
    TORCH_CHECK(param.defined(), label(i, names), " is an undefined tensor");
    TORCH_CHECK(is_supported(param.scalar_type()), label(i, names), " has type ", param.scalar_type(),
                "; supported are float32, float64, bfloat16 and float16");
    TORCH_CHECK(param.layout() == at::kStrided, label(i, names), " has layout ", param.layout(), "; it must be dense");
    TORCH_CHECK(kernels::runs_on(param.device()), label(i, names), " is on ", param.device(), "; this build supports ",
                kernels::runs_on(at::kCUDA) ? "cpu and cuda" : "cpu");
    TORCH_CHECK(!param.is_neg() && !param.is_conj(), label(i, names), " is a lazily negated or conjugated view");
    TORCH_CHECK(!overlaps_itself(param), label(i, names),
                " is a view whose elements may share memory, as those of an expanded tensor do");
    identities.emplace_back(param.unsafeGetTensorImpl(), i);
    if (param.numel() > 0) extents.push_back(extent(param, i));
  }
  std::sort(identities.begin(), identities.end());
  for (size_t i = 1; i < identities.size(); ++i) {
    TORCH_CHECK(identities[i].first != identities[i - 1].first, label(identities[i - 1].second, names), " and ",
                label(identities[i].second, names), " are the same tensor; list it once");
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    const auto [first, second] = std::minmax(extents[i - 1].index, extents[i].index);
    TORCH_CHECK(extents[i - 1].end <= extents[i].begin, label(first, names), " and ", label(second, names),
                " share memory; a shared weight must be one tensor, listed once");
  }
}

}  // namespace outerloop::params
