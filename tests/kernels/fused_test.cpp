#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <outerloop/outer_rule.hpp>
#include <outerloop/stages.hpp>

#include <cmath>
#include <numeric>

#include "kernels/backend.hpp"
#include "kernels/cases.hpp"
#include "kernels/cpu.hpp"

/// Every backend's kernels against the composition, which is the public stages on the CPU: the same bits.

namespace outerloop {
namespace {

using testing::Backend;
using testing::block;
using testing::same_bits;
using testing::Sizes;
using testing::Tensors;
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

std::vector<RuleCase> some_rules() {
  if (testing::under_sanitizer) return {rules()[1]};
  return rules();
}

/// Under TSan the second of every four.
Sizes some_sizes(const Sizes& all) {
  if (!testing::under_tsan) return all;
  Sizes kept;
  for (size_t i = 1; i < all.size(); i += 4) kept.push_back(all[i]);
  return kept;
}

Tensors to_cpu(const Tensors& tensors) {
  Tensors copies;
  for (const Tensor& tensor : tensors) copies.push_back(testing::copy_to_cpu(tensor));
  return copies;
}

/// The parameters of one case, in both worlds. `lead`: how many elements into its allocation each begins, or -1 for one
/// to three in turn.
struct Case {
  Case(const Backend& backend, const Sizes& sizes, const Types& types, int64_t lead) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensor values = at::randn({sizes[i]}).to(types[i % types.size()]);
      fused.push_back(backend.put_param(values, lead >= 0 ? lead : 1 + static_cast<int64_t>(i % 3)));
      staged.push_back(values);
    }
  }
  Tensors fused, staged;
};

/// How many elements into its allocation each flat vector begins: users' own may begin anywhere.
struct Leads {
  int64_t anchor = 0, velocity = 0, wire = 0;
};

/// Two rounds, so that the second finds a velocity.
void expect_fused_equals_stages(Backend& backend, const Sizes& sizes, const Types& types, const RuleCase& by,
                                double keep_local, double weight, int64_t lead = -1, const Leads& flat = {}) {
  SCOPED_TRACE(::testing::Message() << sizes.size() << " tensors, the first of " << sizes[0] << ", " << by.name
                                    << ", keep_local " << keep_local << ", weight " << weight << ", lead " << lead
                                    << ", leads of flat vectors " << flat.anchor << flat.velocity << flat.wire);
  torch::manual_seed(7);
  Case params(backend, sizes, types, lead);
  FlatParams staged(params.staged);
  const Tensor start = staged.gather();
  OuterState state{.anchor = start + 0.125 * at::randn_like(start), .slots = {}, .round = 0};
  if (by.rule->slots() > 0) state.slots.push_back(at::zeros_like(start));
  const Tensor anchor = backend.put_flat(state.anchor, flat.anchor);
  const Tensor wire = backend.put_flat(at::full_like(start, NAN), flat.wire);
  const Tensor velocity = state.slots.empty() ? Tensor() : backend.put_flat(state.slots[0], flat.velocity);

  kernels::Step step = by.step;
  step.inverse_weight = 1 / (weight + 2);  // as if the others weighed 2
  step.keep_local = keep_local;
  for (int round = 0; round < 2; ++round) {
    const auto summary = backend.send(params.fused, anchor, wire, weight);
    const Tensor delta = pseudogradient(state.anchor, staged), sent = delta * weight;
    ASSERT_TRUE(same_bits(testing::copy_to_cpu(wire), sent));
    ASSERT_EQ(summary.fingerprint, fingerprint(state.anchor));
    ASSERT_EQ(summary.non_finite, summarize(sent).non_finite);
    ASSERT_NEAR(std::sqrt(summary.sum_squares), summarize(delta).norm, 1e-12 * summarize(delta).norm);

    const double squares = backend.apply(params.fused, anchor, velocity, wire, step);
    const Tensor mean_delta = sent * step.inverse_weight;
    by.rule->step(state, mean_delta);
    staged.scatter(state.anchor, keep_local);
    ASSERT_TRUE(same_bits(testing::copy_to_cpu(anchor), state.anchor));
    if (velocity.defined()) {
      ASSERT_TRUE(same_bits(testing::copy_to_cpu(velocity), state.slots[0]));
    }
    ASSERT_TRUE(same_bits(to_cpu(params.fused), params.staged));
    ASSERT_NEAR(std::sqrt(squares), summarize(mean_delta).norm, 1e-12 * summarize(mean_delta).norm);
  }
}

void expect_fused_equals_stages(Backend& backend, const Sizes& sizes, const Types& types) {
  for (const RuleCase& rule : some_rules()) {
    for (const double keep_local : {0.0, 0.5, 1.0}) {
      expect_fused_equals_stages(backend, sizes, types, rule, keep_local, keep_local == 0 ? 1.0 : 3.3);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

const RuleCase& nesterov() {
  static const RuleCase rule = rules()[1];
  return rule;
}

struct Fused : ::testing::TestWithParam<std::tuple<std::shared_ptr<Backend>, Types>> {
  Backend& backend() const { return *std::get<0>(GetParam()); }
  const Types& types() const { return std::get<1>(GetParam()); }
};

TEST_P(Fused, EqualsStagesForEveryTailAndHead) {
  for (const int64_t n :
       some_sizes({0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 255, 256, 257, 1023, 1024, 1025})) {
    expect_fused_equals_stages(backend(), {n}, types());
    if (HasFatalFailure()) return;
  }
}

TEST_P(Fused, EqualsStagesForEveryMisalignment) {
  for (const int64_t lead : some_sizes({0, 1, 2, 3})) {
    for (const int64_t n : {3, 33, 1023, 4097}) {
      expect_fused_equals_stages(backend(), {n}, types(), nesterov(), 0.5, 3.3, lead);
      expect_fused_equals_stages(backend(), {lead + 1, n}, types(), nesterov(), 0.0, 1.0, lead);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Fused, EqualsStagesWhereverEachFlatVectorBegins) {
  for (const Leads& leads : {Leads{.anchor = 1}, Leads{.velocity = 1}, Leads{.wire = 1}, Leads{3, 2, 1}}) {
    expect_fused_equals_stages(backend(), {33}, types(), nesterov(), 0.0, 1.0, 0, leads);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Fused, EqualsStagesAroundChunksAndBlocks) {
  for (const int64_t n : some_sizes({4097, 8191, 8192, 8193, 65535, 65536, 65537, 100003})) {
    expect_fused_equals_stages(backend(), {n}, types(), nesterov(), 0.5, 1.0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Fused, EqualsStagesForTwoTensors) {
  for (const RuleCase& rule : some_rules()) {
    expect_fused_equals_stages(backend(), {8195, 4097}, types(), rule, 0.0, 3.3);
  }
}

TEST_P(Fused, EqualsStagesForFiveThousandTensorsSomeOfThemEmpty) {
  Sizes sizes;
  for (int64_t n = 0; n < 5000; ++n) sizes.push_back(n % 7 == 3 ? 0 : n % 23 + 1);
  expect_fused_equals_stages(backend(), sizes, types(), nesterov(), 0.5, 3.3);
}

TEST_P(Fused, EqualsStagesForNoElementsAtAll) {
  expect_fused_equals_stages(backend(), {0, 0, 0}, types(), nesterov(), 0.5, 1.0);
}

TEST_P(Fused, SumsAreTheSameEveryTime) {
  torch::manual_seed(7);
  const Case params(backend(), {100003, 77}, types(), -1);
  FlatParams staged(params.staged);
  const Tensor anchor = backend().put_flat(staged.gather() + 0.1), wire = backend().put_flat(staged.gather());
  const auto first = backend().send(params.fused, anchor, wire, 1);
  for (int again = 0; again < 3; ++again) {
    const auto next = backend().send(params.fused, anchor, wire, 1);
    EXPECT_EQ(next.sum_squares, first.sum_squares);
    EXPECT_EQ(next.fingerprint, first.fingerprint);
  }
}

TEST_P(Fused, CountsWhatIsNotFinite) {
  const Case params(backend(), {8195, 513}, types(), 1);
  FlatParams staged(params.staged);
  const Tensor values = staged.gather();
  for (const int64_t place : {0, 3, 8191, 8194, 8195, 8707}) values[place] = place % 2 == 0 ? NAN : -INFINITY;
  const Tensor anchor = backend().put_flat(values), wire = backend().put_flat(values);
  EXPECT_EQ(backend().send(params.fused, anchor, wire, 1).non_finite, 6);
}

TEST_P(Fused, StagesOneByOneEqualTheCpus) {
  for (const int64_t n : some_sizes({1, 5, 33, 1025, 8197})) {
    for (const Leads& leads : {Leads{}, Leads{.anchor = 3}, Leads{.velocity = 1}, Leads{.wire = 1}}) {
      torch::manual_seed(7);
      const Case params(backend(), {n, 7}, types(), -1);
      FlatParams staged(params.staged);
      const Tensor values = staged.gather() + 0.25, random = at::randn_like(values), spread = at::randn_like(values);
      const Tensor flat = backend().put_flat(values, leads.anchor), out = backend().put_flat(random, leads.wire);
      backend().gather(params.fused, out);
      ASSERT_TRUE(same_bits(testing::copy_to_cpu(out), staged.gather()));
      backend().delta(params.fused, flat, out);
      ASSERT_TRUE(same_bits(testing::copy_to_cpu(out), pseudogradient(values, staged)));

      const auto summary = backend().summarize(flat);
      ASSERT_EQ(summary.fingerprint, fingerprint(values));
      ASSERT_NEAR(std::sqrt(summary.sum_squares), summarize(values).norm, 1e-12 * summarize(values).norm);

      for (const double keep_local : {0.0, 0.5}) {
        backend().scatter(params.fused, flat, keep_local);
        staged.scatter(values, keep_local);
        ASSERT_TRUE(same_bits(to_cpu(params.fused), params.staged));
      }
      for (const bool nesterov : {false, true}) {
        const Tensor anchor = values.clone(), velocity = spread.clone();
        const Tensor a = backend().put_flat(anchor, leads.anchor), v = backend().put_flat(velocity, leads.velocity);
        const Tensor mean_delta = backend().put_flat(random, leads.wire);
        const kernels::Step step{.lr = 0.7, .momentum = 0.9, .nesterov = nesterov};
        backend().step(a, v, mean_delta, step);
        nesterov_step(anchor, velocity, random, 0.7, 0.9, nesterov);
        ASSERT_TRUE(same_bits(testing::copy_to_cpu(a), anchor));
        ASSERT_TRUE(same_bits(testing::copy_to_cpu(v), velocity));
        backend().step(a, Tensor(), mean_delta, {});
        average_step(anchor, random);
        ASSERT_TRUE(same_bits(testing::copy_to_cpu(a), anchor));
      }
    }
  }
}

std::vector<Types> type_lists() {
  const Types mixed{at::kHalf, at::kFloat, at::kBFloat16};
  if (testing::under_tsan) return {mixed};  // the kernels of all types are one template
  return {{at::kFloat}, {at::kBFloat16}, {at::kHalf}, {at::kDouble}, mixed};
}

INSTANTIATE_TEST_SUITE_P(On, Fused,
                         ::testing::Combine(::testing::ValuesIn(testing::backends()),
                                            ::testing::ValuesIn(type_lists())),
                         [](const auto& info) {
                           const Types& types = std::get<1>(info.param);
                           const std::string type = types.size() > 1 ? "Mixed" : std::string(c10::toString(types[0]));
                           return std::get<0>(info.param)->name() + "With" + type;
                         });

}  // namespace
}  // namespace outerloop
