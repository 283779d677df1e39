#include "params/flat_params.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "params/check.hpp"

namespace outerloop {

FlatParams::FlatParams(std::vector<Tensor> params) : impl_(std::make_unique<Impl>()) {
  params::check(params, {});
  Impl& impl = *impl_;
  impl.tensors = std::move(params);
  impl.dense.resize(impl.tensors.size());
  for (size_t i = 0; i < impl.tensors.size(); ++i) impl.labels.push_back(params::label(i, {}));
  if (!impl.tensors.empty() && impl.tensors[0].scalar_type() == at::kDouble) impl.dtype = at::kDouble;
  if (!impl.tensors.empty()) impl.memory.device = impl.tensors[0].device();
  for (size_t i = 0; i < impl.tensors.size(); ++i) {
    const Tensor& param = impl.tensors[i];
    TORCH_CHECK((param.scalar_type() == at::kDouble) == (impl.dtype == at::kDouble), impl.labels[i], " has type ",
                param.scalar_type(), " where parameter 0 has ", impl.tensors[0].scalar_type(),
                "; float64 parameters need a FlatParams of their own");
    TORCH_CHECK(param.device() == impl.device(), impl.labels[i], " is on ", param.device(), " where parameter 0 is on ",
                impl.device(), "; parameters of each device need a FlatParams of their own");
    impl.memory.segments.push_back({nullptr, param.scalar_type(), impl.numel, param.numel()});
    impl.numel += param.numel();
  }
}

FlatParams::FlatParams(FlatParams&&) noexcept = default;
FlatParams& FlatParams::operator=(FlatParams&&) noexcept = default;
FlatParams::~FlatParams() = default;

int64_t FlatParams::numel() const { return impl_->numel; }
at::ScalarType FlatParams::dtype() const { return impl_->dtype; }
at::Device FlatParams::device() const { return impl_->device(); }
const std::vector<Tensor>& FlatParams::tensors() const { return impl_->tensors; }

kernels::Params& FlatParams::Impl::pull() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& param = tensors[i];
    kernels::Segment& segment = memory.segments[i];
    TORCH_CHECK(param.scalar_type() == segment.dtype, labels[i], " was ", segment.dtype,
                " when its optimizer was made and is ", param.scalar_type(), " now; convert the model before that");
    TORCH_CHECK(param.device() == device(), labels[i], " was on ", device(), " when its optimizer was made and is on ",
                param.device(), " now; move the model before that");
    TORCH_CHECK(param.numel() == segment.numel, labels[i], " had ", segment.numel,
                " elements when its optimizer was made and has ", param.numel(), " now");
    if (param.is_contiguous()) {
      segment.data = param.mutable_data_ptr();
    } else {
      if (!dense[i].defined() || dense[i].sizes() != param.sizes())
        dense[i] = at::empty(param.sizes(), param.options().memory_format(at::MemoryFormat::Contiguous));
      dense[i].copy_(param);
      segment.data = dense[i].mutable_data_ptr();
    }
  }
  return memory;
}

void FlatParams::Impl::push() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
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
