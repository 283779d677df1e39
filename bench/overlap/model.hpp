#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

namespace outerloop::bench {

using at::Tensor;

/// A residual net of layers that are alike, so that fragments are too.
class Model {
 public:
  static constexpr int64_t layers = 8, width = 320, parameters = layers * width * width;

  explicit Model(uint64_t seed) {
    at::Generator random = at::detail::createCPUGenerator(seed);
    for (int64_t i = 0; i < layers; ++i) {
      weights.push_back(at::randn({width, width}, random).div_(std::sqrt(width)).requires_grad_(true));
    }
  }
  Tensor forward(Tensor x) const {
    for (const Tensor& weight : weights) x = x + at::relu(at::matmul(x, weight));
    return x / layers;
  }
  std::vector<Tensor> weights;
};

/// What it learns: another such net. Each replica sees inputs of its own.
class Task {
 public:
  static constexpr int64_t batch = 192;

  explicit Task(int rank) : random_(at::detail::createCPUGenerator(100 + rank)), teacher_(1) {}
  Tensor loss(const Model& model) {
    const Tensor input = at::randn({batch, Model::width}, random_);
    const Tensor expected = [&] {
      const at::NoGradGuard no_grad;
      return teacher_.forward(input);
    }();
    return at::mse_loss(model.forward(input), expected);
  }

 private:
  at::Generator random_;
  Model teacher_;
};

}  // namespace outerloop::bench
