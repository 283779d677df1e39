#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <outerloop/stages.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cases.hpp"
#include "kernels/cpu.hpp"
#include "params/flat_params.hpp"

/// What only the CPU's kernels have: threads, and writes past the caches.

namespace outerloop {
namespace {

using testing::block;
using testing::same_bits;
using testing::Sizes;
using testing::Types;

/// Sets the number of threads for one scope.
struct Threads {
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

struct OnCpu : ::testing::TestWithParam<Types> {
  /// One round by the fused kernels on one copy of the parameters, by the public stages on another.
  void expect_fused_equals_stages(const Sizes& sizes, const kernels::Step& step) {
    torch::manual_seed(7);
    FlatParams fused(testing::unaligned_params(sizes, GetParam()));
    FlatParams staged(testing::unaligned_copies(fused.tensors()));
    const Tensor start = staged.gather(), expected = start + 0.125 * at::randn_like(start);
    const Tensor velocity = at::randn_like(start), expected_velocity = velocity.clone();
    const Tensor anchor = expected.clone(), wire = at::empty_like(anchor);
    kernels::send(fused.impl().pull(), anchor, wire, 3.3);
    const Tensor sent = pseudogradient(expected, staged) * 3.3;
    ASSERT_TRUE(same_bits(wire, sent));
    kernels::apply(fused.impl().pull(), anchor, velocity, wire, step);
    nesterov_step(expected, expected_velocity, sent * step.inverse_weight, step.lr, step.momentum, step.nesterov);
    staged.scatter(expected, step.keep_local);
    ASSERT_TRUE(same_bits(anchor, expected));
    ASSERT_TRUE(same_bits(velocity, expected_velocity));
    ASSERT_TRUE(same_bits(fused.tensors(), staged.tensors()));
  }
};

constexpr kernels::Step step{.inverse_weight = 1 / 5.3, .lr = 0.7, .momentum = 0.9, .nesterov = true};
constexpr kernels::Step mixing{
    .inverse_weight = 1 / 5.3, .lr = 0.7, .momentum = 0.9, .nesterov = true, .keep_local = 0.5};
constexpr int64_t streamed = kernels::cpu::stream_from;

TEST_P(OnCpu, FusedEqualsStagesOnAnyNumberOfThreads) {
  for (int threads = 1; threads <= 4; ++threads) {
    const Threads set(threads);
    for (const int64_t n : {block - 1, block, block + 1, 3 * block + 17}) expect_fused_equals_stages({n}, mixing);
  }
}

TEST_P(OnCpu, FusedEqualsStagesWhereWritesGoPastTheCaches) {
  const Sizes sizes{1, streamed / 2 + 13, 0, 17, streamed / 4 + 1, streamed / 4 - 31, 4099};
  ASSERT_GE(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), streamed);
  const Threads set(3);
  expect_fused_equals_stages(sizes, step);
  expect_fused_equals_stages(sizes, mixing);
}

INSTANTIATE_TEST_SUITE_P(Params, OnCpu,
                         ::testing::Values(Types{at::kFloat}, Types{at::kBFloat16}, Types{at::kHalf},
                                           Types{at::kDouble}, Types{at::kHalf, at::kFloat, at::kBFloat16}),
                         [](const auto& info) {
                           return info.param.size() > 1 ? "Mixed" : std::string(c10::toString(info.param[0]));
                         });

TEST(StepApartOnCpu, EqualsApplyOnAnyNumberOfThreads) {
  for (const int64_t n : {block - 1, block, 3 * block + 17}) {
    torch::manual_seed(7);
    const Tensor anchor = at::randn({n}), velocity = at::randn({n}), sent = at::randn({n});
    const Tensor expected = anchor.clone(), expected_velocity = velocity.clone();
    FlatParams params({at::empty({n})});
    kernels::apply(params.impl().pull(), expected, expected_velocity, sent, step);
    std::vector<double> sums;
    for (int threads = 1; threads <= 3; ++threads) {
      const Threads set(threads);
      const Tensor wire = sent.clone(), next_velocity = at::full_like(sent, NAN);
      kernels::step_apart(anchor, velocity, wire, next_velocity, step, &sums.emplace_back());
      ASSERT_TRUE(same_bits(wire, expected));
      ASSERT_TRUE(same_bits(next_velocity, expected_velocity));
      ASSERT_EQ(sums.back(), sums.front());
    }
  }
}

TEST(StepApartOnCpu, SumsBlockByBlockToTheBitsOfTheWhole) {
  torch::manual_seed(7);
  constexpr int64_t n = 5 * block + 77;
  const Tensor anchor = at::randn({n}), velocity = at::randn({n}), wire = at::randn({n});
  const Tensor next_velocity = at::empty({n}), sent = wire.clone();
  double sum_squares = 0, sum_of_blocks = 0;
  kernels::step_apart(anchor, velocity, wire, next_velocity, step, &sum_squares);
  for (int64_t begin = 0; begin < n; begin += block) {
    const auto part = [&](const Tensor& whole) { return whole.narrow(0, begin, std::min(block, n - begin)); };
    double part_squares = 0;
    kernels::step_apart(part(anchor), part(velocity), part(sent), part(next_velocity), step, &part_squares);
    sum_of_blocks += part_squares;
  }
  EXPECT_EQ(sum_of_blocks, sum_squares);
  EXPECT_TRUE(same_bits(sent, wire));
}

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
