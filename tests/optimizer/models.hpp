#pragma once

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/tensors.hpp"

namespace outerloop::testing {

using at::Tensor;
using torch::optim::Optimizer;

/// A leaf over this very memory, strides kept, for an optimizer.
inline Tensor leaf(const Tensor& value) { return value.detach().set_requires_grad(true); }

inline std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

inline void assign(const std::vector<Tensor>& to, const std::vector<Tensor>& from) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

/// Sets every gradient to `value` and takes one step.
inline void step_with_grad(Optimizer& optimizer, const std::vector<Tensor>& params, double value) {
  for (const Tensor& param : params) param.mutable_grad() = torch::full_like(param, value);
  optimizer.step();
}

/// A perceptron of two layers. Its data are a pure function of step and replica, with no generator in common.
struct Mlp {
  Tensor w1 = weights({4, 5}, 1), b1 = weights({5}, 2), w2 = weights({5, 2}, 3), b2 = weights({2}, 4);
  std::vector<Tensor> params{w1, b1, w2, b2};

  Tensor loss(int64_t step, int replica) const {
    const double phase = 10 * static_cast<double>(step) + replica;
    const Tensor y = torch::tanh(wave({3, 4}, phase).matmul(w1) + b1).matmul(w2) + b2;
    return (y - wave({3, 2}, phase + 5)).square().mean();
  }

 private:
  static Tensor wave(at::IntArrayRef shape, double phase) {
    const int64_t n = c10::multiply_integers(shape);
    return torch::sin(torch::arange(n, torch::kFloat) * 0.7 + phase).reshape(shape);
  }
  static Tensor weights(at::IntArrayRef shape, double phase) { return leaf(wave(shape, phase) * 0.5); }
};

/// One step with a closure in the usual idiom, zero_grad inside; closures are what LBFGS needs and the others allow.
inline Tensor closure_step(Optimizer& optimizer, const Mlp& model, int64_t step, int replica = 0) {
  return optimizer.step([&] {
    optimizer.zero_grad();
    Tensor loss = model.loss(step, replica);
    loss.backward();
    return loss.detach();
  });
}

struct Inner {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)> make;
};
inline std::ostream& operator<<(std::ostream& out, const Inner& inner) { return out << inner.name; }

template <class Kind, class Options>
Inner inner(std::string name, Options options) {
  return {std::move(name),
          [options](std::vector<Tensor> params) { return std::make_unique<Kind>(std::move(params), options); }};
}

/// Every optimizer of libtorch, in every variant that has code of its own.
inline std::vector<Inner> inners() {
  using namespace torch::optim;
  return {
      inner<SGD>("Sgd", SGDOptions(0.1)),
      inner<SGD>("SgdMomentum", SGDOptions(0.1).momentum(0.9)),
      inner<SGD>("SgdDampening", SGDOptions(0.1).momentum(0.9).dampening(0.3)),
      inner<SGD>("SgdNesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)),
      inner<SGD>("SgdWeightDecay", SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
      inner<Adam>("Adam", AdamOptions(0.01).weight_decay(0.01)),
      inner<Adam>("AdamAmsgrad", AdamOptions(0.01).amsgrad(true)),
      inner<AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.1)),
      inner<RMSprop>("RMSprop", RMSpropOptions(0.01)),
      inner<RMSprop>("RMSpropCentered", RMSpropOptions(0.01).centered(true).momentum(0.5)),
      inner<Adagrad>("Adagrad", AdagradOptions(0.1).lr_decay(0.01)),
      inner<LBFGS>("Lbfgs", LBFGSOptions(0.5).max_iter(4).history_size(3).line_search_fn("strong_wolfe")),
  };
}

inline std::vector<Inner> inners_without_closure() {
  auto all = inners();
  all.pop_back();  // LBFGS needs one
  return all;
}

inline std::string name_of(const ::testing::TestParamInfo<Inner>& info) { return info.param.name; }

}  // namespace outerloop::testing
