#include "params/flat_params.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <unordered_map>

#include "params/check.hpp"

namespace outerloop {

namespace {

std::vector<ParamSlice> whole(const std::vector<Tensor>& params) {
  params::check(params, {});
  std::vector<ParamSlice> slices;
  for (size_t i = 0; i < params.size(); ++i) slices.push_back({params[i], params::label(i, {}), 0, params[i].numel()});
  return slices;
}

}  // namespace

FlatParams::Impl::Impl(std::vector<ParamSlice> of) : slices(std::move(of)), dense(slices.size()) {
  if (!slices.empty() && slices[0].param.scalar_type() == at::kDouble) dtype = at::kDouble;
  if (!slices.empty()) memory.device = slices[0].param.device();
  std::unordered_map<const void*, size_t> met;
  for (const ParamSlice& slice : slices) {
    const Tensor& param = slice.param;
    TORCH_CHECK((param.scalar_type() == at::kDouble) == (dtype == at::kDouble), slice.label, " has type ",
                param.scalar_type(), " where parameter 0 has ", tensors[0].scalar_type(),
                "; float64 parameters need a FlatParams of their own");
    TORCH_CHECK(param.device() == device(), slice.label, " is on ", param.device(), " where parameter 0 is on ",
                device(), "; parameters of each device need a FlatParams of their own");
    first_of.push_back(met.try_emplace(param.unsafeGetTensorImpl(), tensors.size()).first->second);
    tensors.push_back(param);
    elements.push_back(param.numel());
    memory.segments.push_back({nullptr, param.scalar_type(), numel, slice.numel});
    numel += slice.numel;
  }
}

FlatParams FlatParams::Impl::of(std::vector<ParamSlice> slices) {
  return {Made(), std::make_unique<Impl>(std::move(slices))};
}

FlatParams::FlatParams(Made, std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FlatParams::FlatParams(std::vector<Tensor> params) : FlatParams(Made(), std::make_unique<Impl>(whole(params))) {}
FlatParams::FlatParams(FlatParams&&) noexcept = default;
FlatParams& FlatParams::operator=(FlatParams&&) noexcept = default;
FlatParams::~FlatParams() = default;

int64_t FlatParams::numel() const { return impl_->numel; }
at::ScalarType FlatParams::dtype() const { return impl_->dtype; }
at::Device FlatParams::device() const { return impl_->device(); }
const std::vector<Tensor>& FlatParams::tensors() const { return impl_->tensors; }

/// Of the parameter of slice `i`, or of a dense copy.
void* FlatParams::Impl::memory_of(size_t i) {
  const Tensor& param = tensors[i];
  if (param.is_contiguous()) return param.mutable_data_ptr();
  Tensor& copy = dense[first_of[i]];
  if (first_of[i] == i) {
    if (!copy.defined() || copy.sizes() != param.sizes())
      copy = at::empty(param.sizes(), param.options().memory_format(at::MemoryFormat::Contiguous));
    copy.copy_(param);
  }
  return copy.mutable_data_ptr();
}

kernels::Params& FlatParams::Impl::pull() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slices.size(); ++i) {
    const ParamSlice& slice = slices[i];
    const Tensor& param = slice.param;
    kernels::Segment& segment = memory.segments[i];
    TORCH_CHECK(param.scalar_type() == segment.dtype, slice.label, " was ", segment.dtype,
                " when its optimizer was made and is ", param.scalar_type(), " now; convert the model before that");
    TORCH_CHECK(param.device() == device(), slice.label, " was on ", device(),
                " when its optimizer was made and is on ", param.device(), " now; move the model before that");
    TORCH_CHECK(param.numel() == elements[i], slice.label, " had ", elements[i],
                " elements when its optimizer was made and has ", param.numel(), " now");
    segment.data = static_cast<char*>(memory_of(i)) + slice.first * static_cast<int64_t>(param.element_size());
  }
  return memory;
}

void FlatParams::Impl::push() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (first_of[i] != i) continue;
    if (!tensors[i].is_contiguous()) {
      tensors[i].copy_(dense[i]);  // moves the version counter on by itself
    } else {
      tensors[i].unsafeGetTensorImpl()->bump_version();
    }
  }
}

Tensor FlatParams::Impl::gather(at::Device to) {
  Tensor flat = at::empty({numel}, at::TensorOptions().dtype(dtype).device(to));
  kernels::gather(pull(), flat);
  return flat;
}

Tensor FlatParams::gather() const { return impl_->gather(device()); }

void FlatParams::scatter(const Tensor& flat, double keep_local) {
  TORCH_CHECK(flat.is_contiguous() && flat.scalar_type() == dtype() && flat.numel() == numel(), "scatter: needs ",
              dtype(), " [", numel(), "], got ", flat.scalar_type(), flat.sizes());
  TORCH_CHECK(keep_local >= 0 && keep_local <= 1, "keep_local must be in [0, 1], got ", keep_local);
  kernels::scatter(impl_->pull(), flat, keep_local);
  impl_->push();
}

}  // namespace outerloop
