#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <outerloop/outer_rule.hpp>
#include <outerloop/stages.hpp>

#include <memory>
#include <numeric>

#include "kernels/cases.hpp"
#include "kernels/cpu.hpp"
#include "params/flat_params.hpp"

namespace outerloop {
namespace {

using testing::block;
using testing::same_bits;
using testing::Sizes;
using testing::Types;

/// One outer rule, for the composition and as the fused kernel is told about it.
struct RuleCase {
  const char* name;
  std::shared_ptr<const OuterRule> rule;
  kernels::Step step;
};

std::vector<RuleCase> rules() {
  return {{"average", std::make_shared<Average>(), {}},
          {"nesterov", std::make_shared<Nesterov>(0.7, 0.9, true), {.lr = 0.7, .momentum = 0.9, .nesterov = true}},
          {"heavy ball", std::make_shared<Nesterov>(0.7, 0.9, false), {.lr = 0.7, .momentum = 0.9}},
          {"no momentum", std::make_shared<Nesterov>(0.3, 0.0, true), {.lr = 0.3, .nesterov = true}}};
}

/// Two rounds, so that the second finds a velocity: by the fused kernels on one copy of the parameters, by the public
/// stages on another.
void expect_fused_equals_stages(const Sizes& sizes, const Types& types, const RuleCase& by, double keep_local,
                                double weight) {
  SCOPED_TRACE(::testing::Message() << sizes.size() << " tensors, the first of " << sizes[0] << ", " << by.name
                                    << ", keep_local " << keep_local << ", weight " << weight << ", "
                                    << at::get_num_threads() << " threads");
  torch::manual_seed(7);
  FlatParams fused(testing::unaligned_params(sizes, types));
  FlatParams staged(testing::unaligned_copies(fused.tensors()));

  const Tensor start = staged.gather();
  OuterState state{.anchor = start + 0.125 * at::randn_like(start), .slots = {}, .round = 0};
  if (by.rule->slots() > 0) state.slots.push_back(at::zeros_like(start));
  const Tensor anchor = state.anchor.clone(), wire = at::empty_like(anchor);
  const Tensor velocity = state.slots.empty() ? Tensor() : state.slots[0].clone();

  kernels::Step step = by.step;
  step.inverse_weight = 1 / (weight + 2);  // as if the others weighed 2
  step.keep_local = keep_local;
  for (int round = 0; round < 2; ++round) {
    const auto summary = kernels::send(fused.impl().pull(), anchor, wire, weight);
    ASSERT_EQ(summary.fingerprint, fingerprint(state.anchor));
    const Tensor sent = pseudogradient(state.anchor, staged) * weight;
    ASSERT_TRUE(same_bits(wire, sent));

    kernels::apply(fused.impl().pull(), anchor, velocity, wire, step);
    by.rule->step(state, sent * step.inverse_weight);
    staged.scatter(state.anchor, keep_local);
    ASSERT_TRUE(same_bits(anchor, state.anchor));
    if (velocity.defined()) {
      ASSERT_TRUE(same_bits(velocity, state.slots[0]));
    }
    ASSERT_TRUE(same_bits(fused.tensors(), staged.tensors()));
  }
}

void expect_fused_equals_stages(const Sizes& sizes, const Types& types) {
  for (const RuleCase& rule : rules()) {
    for (const double keep_local : {0.0, 0.5, 1.0}) {
      for (const double weight : {1.0, 3.3}) {
        expect_fused_equals_stages(sizes, types, rule, keep_local, weight);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Sets the number of threads for one scope.
struct Threads {
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

constexpr int64_t streamed = kernels::cpu::stream_from;

struct Fused : ::testing::TestWithParam<Types> {};

TEST_P(Fused, EqualsStagesBitForBitAroundVectorWidthAndTile) {
  for (const int64_t n : {0, 1, 2, 15, 16, 17, 31, 33, 63, 65, 1023, 1024, 1025, 4097}) {
    expect_fused_equals_stages({n}, GetParam());
  }
}

TEST_P(Fused, EqualsStagesBitForBitAroundBlocksOnAnyNumberOfThreads) {
  const auto nesterov = rules()[1];
  for (int threads = 1; threads <= 4; ++threads) {
    const Threads set(threads);
    for (const int64_t n : {block - 1, block, block + 1, 3 * block + 17}) {
      expect_fused_equals_stages({n}, GetParam(), nesterov, 0.5, 1.0);
    }
  }
}

TEST_P(Fused, EqualsStagesBitForBitOverManyTensorsOfOddSizes) {
  Sizes sizes;
  for (int64_t n = 0; n < 300; ++n) sizes.push_back(n % 7 == 3 ? 0 : 2 * n + 1);  // 77,000 elements, some tensors empty
  for (const RuleCase& rule : rules()) expect_fused_equals_stages(sizes, GetParam(), rule, 0.5, 3.3);
}

TEST_P(Fused, EqualsStagesBitForBitWhereWritesGoPastTheCaches) {
  const auto nesterov = rules()[1], average = rules()[0];
  const Sizes sizes{1, streamed / 2 + 13, 0, 17, streamed / 4 + 1, streamed / 4 - 31, 4099};
  ASSERT_GE(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), streamed);
  const Threads set(3);
  expect_fused_equals_stages(sizes, GetParam(), nesterov, 0.0, 3.3);
  expect_fused_equals_stages(sizes, GetParam(), nesterov, 0.5, 1.0);
  expect_fused_equals_stages(sizes, GetParam(), average, 0.0, 1.0);
}

INSTANTIATE_TEST_SUITE_P(Params, Fused,
                         ::testing::Values(Types{at::kFloat}, Types{at::kBFloat16}, Types{at::kHalf},
                                           Types{at::kDouble}, Types{at::kHalf, at::kFloat, at::kBFloat16}),
                         [](const auto& info) {
                           return info.param.size() > 1 ? "Mixed" : std::string(c10::toString(info.param[0]));
                         });

/// The stages themselves, against their formulas written out for one element.
TEST(Stages, NesterovStepIsItsFormulaForEveryElement) {
  torch::manual_seed(7);
  constexpr int64_t n = 1000;
  const float lr = 0.7f, momentum = 0.9f;
  for (const bool nesterov : {true, false}) {
    const Tensor anchor = at::randn({n}), velocity = at::randn({n}), mean_delta = at::randn({n});
    const Tensor a0 = anchor.clone(), v0 = velocity.clone();
    nesterov_step(anchor, velocity, mean_delta, lr, momentum, nesterov);
    for (int64_t i = 0; i < n; ++i) {
      const float d = mean_delta[i].item<float>();
      const float v = std::fma(momentum, v0[i].item<float>(), d);
      const float a = std::fma(-lr, nesterov ? std::fma(momentum, v, d) : v, a0[i].item<float>());
      ASSERT_EQ(velocity[i].item<float>(), v);
      ASSERT_EQ(anchor[i].item<float>(), a);
    }
  }
}

TEST(Send, IsZeroWhereParamsAreTheRoundedAnchor) {
  torch::manual_seed(7);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor anchor = at::randn({4097});
    FlatParams params({anchor.to(type)});
    const Tensor wire = at::full_like(anchor, 5);
    kernels::send(params.impl().pull(), anchor, wire, 1);
    EXPECT_TRUE(same_bits(wire, at::zeros_like(anchor))) << type;
  }
}

TEST(Apply, LeavesParamsAloneWithKeepLocalOne) {
  torch::manual_seed(7);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor param = at::randn({4097}).to(type), before = param.clone();
    FlatParams params({param});
    const Tensor anchor = at::randn({4097}), wire = at::randn({4097});
    kernels::apply(params.impl().pull(), anchor, Tensor(), wire, {.keep_local = 1});
    EXPECT_TRUE(same_bits(param, before)) << type;
  }
}

}  // namespace
}  // namespace outerloop
