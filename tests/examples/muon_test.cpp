#include <gtest/gtest.h>

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
