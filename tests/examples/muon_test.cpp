#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "../../examples/muon.hpp"
#include "support/tensors.hpp"

namespace outerloop::testing {
namespace {

TEST(Muon, MakesSingularValuesNearlyOne) {
  for (const auto& shape : {std::vector<int64_t>{64, 64}, {256, 64}, {64, 256}, {3, 64, 64}}) {
    const Tensor values = torch::linalg_svdvals(orthogonalized(normal(shape, 5)));
    EXPECT_GT(values.median().item<double>(), 0.65);
    EXPECT_LT(values.max().item<double>(), 1.3);
  }
}

/// Two matrices, one of which is three, and a vector, after `steps` steps.
struct Trained {
  std::vector<Tensor> matrices{parameter(normal({8, 8}, 1)), parameter(normal({24, 8}, 2))};
  std::vector<Tensor> others{parameter(normal({5}, 3))};
  Muon optimizer{matrices, others, torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1)};
  void step(int number) {
    for (const auto& group : optimizer.param_groups()) {
      for (const Tensor& param : group.params()) {
        param.mutable_grad() = normal(param.sizes(), static_cast<uint64_t>(100 * number + param.numel()));
      }
    }
    optimizer.step();
  }
};

TEST(Muon, GoesOnBitForBitFromWhatWasSaved) {
  Trained straight, resumed;
  for (int step = 0; step < 6; ++step) straight.step(step);
  Trained first;
  for (int step = 0; step < 3; ++step) first.step(step);
  std::stringstream saved;
  torch::save(first.optimizer, saved);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) resumed.matrices[i].copy_(first.matrices[i]);
    resumed.others[0].copy_(first.others[0]);
  }
  torch::load(resumed.optimizer, saved);
  for (int step = 3; step < 6; ++step) resumed.step(step);
  EXPECT_TRUE(same_bits(resumed.matrices, straight.matrices));
  EXPECT_TRUE(same_bits(resumed.others, straight.others));
}

/// The Newton-Schulz steps on the singular values, where they are a polynomial of numbers.
Tensor orthogonalized_by_svd(const Tensor& matrix) {
  auto [u, s, vh] = torch::linalg_svd(matrix, /*full_matrices=*/false);
  s = s / (s.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s.pow(3) + 2.0315 * s.pow(5);
  return u.matmul(s.diag()).matmul(vh);
}

TEST(Muon, StepsByItsFormulaWhateverTheShape) {
  constexpr double lr = 0.01, mu = 0.95, weight_decay = 0.1;
  for (const auto& shape : {std::vector<int64_t>{8, 8}, {16, 8}, {8, 32}, {24, 8}}) {
    const Tensor param = parameter(normal(shape, 1, at::kDouble));
    Muon optimizer({param}, {}, torch::optim::AdamWOptions(lr).betas({0.8, 0.99}).weight_decay(weight_decay), mu);
    const int64_t parts = shape[0] == 24 ? 3 : 1;
    const auto scale = 0.2 * std::sqrt(static_cast<double>(std::max(shape[0] / parts, shape[1])));
    Tensor expected = param.detach().clone(), momentum = torch::zeros_like(expected);
    for (uint64_t step = 0; step < 3; ++step) {
      const Tensor gradient = normal(shape, 100 + step, at::kDouble);
      param.mutable_grad() = gradient.clone();
      optimizer.step();
      momentum = mu * momentum + gradient;
      std::vector<Tensor> update;
      for (const Tensor& part : (gradient + mu * momentum).chunk(parts)) update.push_back(orthogonalized_by_svd(part));
      expected = (1 - lr * weight_decay) * expected - lr * scale * torch::cat(update);
    }
    EXPECT_TRUE(torch::allclose(param, expected, 0, 1e-10)) << c10::IntArrayRef(shape);
  }
}

TEST(Muon, IsAdamWForAllButTheMatrices) {
  Trained muon;
  const Tensor alone = parameter(normal({5}, 3));
  torch::optim::AdamW adamw({alone}, torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1));
  for (int step = 0; step < 3; ++step) {
    muon.step(step);
    alone.mutable_grad() = normal({5}, static_cast<uint64_t>(100 * step + 5));
    adamw.step();
  }
  EXPECT_TRUE(same_bits(muon.others[0], alone));
  EXPECT_TRUE(muon.matrices[0].grad().defined());
}

TEST(Muon, StepsEachOfThreeMatricesAlone) {
  Trained muon;
  const Tensor before = muon.matrices[1].detach().clone();
  muon.step(1);
  const Tensor moved = before * (1 - 0.01 * 0.1) - muon.matrices[1].detach();
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor values = torch::linalg_svdvals(moved.narrow(0, 8 * part, 8)) / (0.01 * 0.2 * std::sqrt(8.0));
    EXPECT_LT(values.max().item<double>(), 1.3);
    EXPECT_GT(values.median().item<double>(), 0.65);
  }
}

}  // namespace
}  // namespace outerloop::testing
