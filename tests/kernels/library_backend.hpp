#pragma once

#include <ATen/ATen.h>
#include <outerloop/flat_params.hpp>

#include "kernels/backend.hpp"
#include "params/flat_params.hpp"

namespace outerloop::testing {

/// The library's own kernels, for parameters and flat vectors on these devices.
class LibraryBackend final : public Backend {
 public:
  LibraryBackend(std::string name, at::Device params, at::Device flat)
      : name_(std::move(name)), params_(params), flat_(flat) {}
  std::string name() const override { return name_; }

  Tensor put_param(const Tensor& values, int64_t lead) const override { return put(values, lead, params_); }
  Tensor put_flat(const Tensor& values, int64_t lead) const override { return put(values, lead, flat_); }

  kernels::Summary send(const Tensors& params, const Tensor& anchor, const Tensor& wire, double weight) override {
    FlatParams flat(params);
    return kernels::send(flat.impl().pull(), anchor, wire, weight);
  }
  double apply(const Tensors& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
               const kernels::Step& step) override {
    FlatParams flat(params);
    double sum_squares = 0;
    kernels::apply(flat.impl().pull(), anchor, velocity, wire, step, &sum_squares);
    return sum_squares;
  }
  void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                  const kernels::Step& step, double* sum_squares) override {
    kernels::step_apart(anchor, velocity, wire, next_velocity, step, sum_squares);
  }
  void delta(const Tensors& params, const Tensor& anchor, const Tensor& delta) override {
    FlatParams flat(params);
    kernels::delta(flat.impl().pull(), anchor, delta);
  }
  void gather(const Tensors& params, const Tensor& to) override {
    FlatParams flat(params);
    kernels::gather(flat.impl().pull(), to);
  }
  void scatter(const Tensors& params, const Tensor& from, double keep_local) override {
    FlatParams flat(params);
    kernels::scatter(flat.impl().pull(), from, keep_local);
  }
  void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta,
            const kernels::Step& step) override {
    kernels::step(anchor, velocity, mean_delta, step);
  }
  kernels::Summary summarize(const Tensor& flat) override { return kernels::summarize(flat); }

 private:
  static Tensor put(const Tensor& values, int64_t lead, at::Device device) {
    const Tensor all = at::empty({lead + values.numel()}, values.options());
    all.slice(0, lead).copy_(values);
    // One copy of the whole: a device without kernels of libtorch's own can do that.
    return at::empty(all.sizes(), all.options().device(device)).copy_(all).slice(0, lead);
  }

  std::string name_;
  at::Device params_, flat_;
};

}  // namespace outerloop::testing
