#include <gtest/gtest.h>
#include <torch/types.h>
#include <outerloop/flat_params.hpp>

#include <cmath>

#include "kernels/backend.hpp"
#include "kernels/cases.hpp"
#include "params/flat_params.hpp"

/// Every backend's step apart against apply on the CPU, which takes its step in place: the same bits, elsewhere.

namespace outerloop {
namespace {

using testing::Backend;
using testing::block;
using testing::same_bits;
using testing::Sizes;

/// The values of one outer step, on the CPU. Without momentum there is no velocity.
struct Vectors {
  Tensor anchor, velocity, wire;
};

/// How many elements into a longer vector each begins.
struct Offsets {
  int64_t anchor = 0, velocity = 0, wire = 0, next_velocity = 0;
};

/// A vector that is part of a longer one, whose other elements must stay as they are.
class Part {
 public:
  Part(const Backend& backend, const Tensor& values, int64_t offset)
      : offset_(offset), numel_(values.numel()), before_(at::full({offset + numel_ + 5}, 7, values.options())) {
    before_.narrow(0, offset, numel_).copy_(values);
    whole_ = backend.put_flat(before_);
  }
  Tensor view() const { return whole_.narrow(0, offset_, numel_); }
  /// That this is in it now, and around it what was there before.
  ::testing::AssertionResult has(const Tensor& values) const {
    const Tensor expected = before_.clone();
    expected.narrow(0, offset_, numel_).copy_(values);
    return same_bits(testing::copy_to_cpu(whole_), expected);
  }

 private:
  int64_t offset_, numel_;
  Tensor before_, whole_;
};

Vectors random_vectors(int64_t n, at::ScalarType type, bool has_velocity) {
  torch::manual_seed(7);
  const Tensor like = at::empty({n}, type);
  return {at::randn_like(like), has_velocity ? at::randn_like(like) : Tensor(), at::randn_like(like)};
}

/// In place, on copies, beside parameters that get the anchor. Returns the sum of squares.
double apply_to(const Vectors& vectors, const kernels::Step& step) {
  FlatParams params({at::empty_like(vectors.anchor)});
  double sum_squares = 0;
  kernels::apply(params.impl().pull(), vectors.anchor, vectors.velocity, vectors.wire, step, &sum_squares);
  return sum_squares;
}

/// `next`: what the vectors become, with the sum of squares.
void expect_step_apart(Backend& backend, const Vectors& start, const Vectors& next, double sum_squares,
                       const kernels::Step& step, const Offsets& at = {}) {
  SCOPED_TRACE(::testing::Message() << start.anchor.numel() << " elements of " << start.anchor.scalar_type()
                                    << (step.nesterov ? ", nesterov" : "") << ", momentum " << step.momentum
                                    << ", offsets " << at.anchor << at.velocity << at.wire << at.next_velocity);
  const bool has_velocity = start.velocity.defined();
  const Tensor& any = has_velocity ? start.velocity : start.anchor;  // without velocity, it and the next are not given
  const Part anchor(backend, start.anchor, at.anchor), velocity(backend, any, at.velocity);
  for (const bool asks : {true, false}) {
    const Part wire(backend, start.wire, at.wire), next_velocity(backend, at::full_like(any, NAN), at.next_velocity);
    double sum = -1;
    backend.step_apart(anchor.view(), has_velocity ? velocity.view() : Tensor(), wire.view(),
                       has_velocity ? next_velocity.view() : Tensor(), step, asks ? &sum : nullptr);
    ASSERT_TRUE(wire.has(next.anchor));
    ASSERT_TRUE(next_velocity.has(has_velocity ? next.velocity : at::full_like(any, NAN)));
    ASSERT_TRUE(anchor.has(start.anchor)) << "the anchor is not what it was";
    ASSERT_TRUE(velocity.has(any)) << "the velocity is not what it was";
    if (asks) {
      ASSERT_NEAR(std::sqrt(sum), std::sqrt(sum_squares), 1e-12 * std::sqrt(sum_squares));
    }
  }
}

void expect_equals_apply(Backend& backend, int64_t n, at::ScalarType type, const kernels::Step& step,
                         const Offsets& at = {}) {
  const Vectors start = random_vectors(n, type, step.momentum != 0), next = random_vectors(n, type, step.momentum != 0);
  const double sum_squares = apply_to(next, step);
  expect_step_apart(backend, start, next, sum_squares, step, at);
}

constexpr kernels::Step apart_by_nesterov{.inverse_weight = 1 / 5.3, .lr = 0.7, .momentum = 0.9, .nesterov = true};
constexpr kernels::Step apart_by_heavy_ball{.inverse_weight = 1 / 5.3, .lr = 0.7, .momentum = 0.9};
constexpr kernels::Step apart_without_momentum{.inverse_weight = 1 / 5.3, .lr = 0.3};

struct StepApart : ::testing::TestWithParam<std::tuple<std::shared_ptr<Backend>, at::ScalarType>> {
  Backend& backend() const { return *std::get<0>(GetParam()); }
  at::ScalarType type() const { return std::get<1>(GetParam()); }
};

TEST_P(StepApart, EqualsApplyForEveryTail) {
  for (const auto& step : {apart_by_nesterov, apart_by_heavy_ball, apart_without_momentum}) {
    for (const int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025}) {
      expect_equals_apply(backend(), n, type(), step);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(StepApart, EqualsApplyAroundChunksAndBlocks) {
  for (const int64_t n : {int64_t{8191}, int64_t{8192}, int64_t{8193}, block - 1, block, block + 1, 3 * block + 17}) {
    expect_equals_apply(backend(), n, type(), apart_by_nesterov);
    if (HasFatalFailure() || testing::under_tsan) return;
  }
}

TEST_P(StepApart, EqualsApplyWhereverEachVectorBegins) {
  for (const auto& at :
       {Offsets{.anchor = 1}, Offsets{.velocity = 1}, Offsets{.wire = 1}, Offsets{.next_velocity = 1},
        Offsets{1, 1, 1, 1}, Offsets{2, 2, 2, 2}, Offsets{3, 3, 3, 3}, Offsets{4, 4, 4, 4}, Offsets{3, 2, 1, 5}}) {
    for (const int64_t n : {0, 1, 33, 8195}) {
      expect_equals_apply(backend(), n, type(), apart_by_nesterov, at);
      expect_equals_apply(backend(), n, type(), apart_without_momentum, at);
      if (HasFatalFailure()) return;
    }
  }
}

/// Multiples of 1/8 and steps of 1/2: every product and sum is exact, so any order of operations gives these bits.
TEST_P(StepApart, IsItsFormulaOnExactData) {
  constexpr int64_t n = 2 * 8192 + 3;
  const auto eighths = [&](int64_t by) { return (at::arange(n, at::kLong) * by % 13 - 6).to(type()) / 8; };
  const Vectors start{eighths(1), eighths(2), eighths(3)};
  const Tensor mean_delta = start.wire / 4, velocity = start.velocity / 2 + mean_delta;
  const double sum_squares = mean_delta.to(at::kDouble).square().sum().item<double>();
  kernels::Step step{.inverse_weight = 0.25, .lr = 0.5, .momentum = 0.5};
  expect_step_apart(backend(), start, {start.anchor - velocity / 2, velocity, {}}, sum_squares, step);
  step.nesterov = true;
  const Tensor direction = mean_delta + velocity / 2;
  expect_step_apart(backend(), start, {start.anchor - direction / 2, velocity, {}}, sum_squares, step);
  step.momentum = 0;
  const Vectors without{start.anchor, {}, start.wire};
  expect_step_apart(backend(), without, {start.anchor - mean_delta / 2, {}, {}}, sum_squares, step);
}

TEST_P(StepApart, SumsAreExactOnExactDataAndTheSameEveryTime) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, block + 77}) {
    const Tensor wire = (at::arange(n, at::kLong) % 13 - 6).to(type()) / 8, anchor = backend().put_flat(wire);
    for (int again = 0; again < 3; ++again) {
      double sum_squares = -1;
      backend().step_apart(anchor, {}, backend().put_flat(wire), {}, {.inverse_weight = 0.5}, &sum_squares);
      EXPECT_EQ(sum_squares, (wire.to(at::kDouble) / 2).square().sum().item<double>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, StepApart,
                         ::testing::Combine(::testing::ValuesIn(testing::backends()),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& info) {
                           return std::get<0>(info.param)->name() + "With" + c10::toString(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace outerloop
