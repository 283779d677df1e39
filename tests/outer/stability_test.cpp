#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <outerloop/stability.hpp>

#include <array>
#include <cmath>
#include <random>

#include "optimizer/thrown.hpp"
#include "support/tensors.hpp"

namespace outerloop {

inline std::ostream& operator<<(std::ostream& out, const OuterDynamics& dynamics) {
  return out << "momentum " << dynamics.momentum << (dynamics.nesterov ? ", Nesterov" : ", heavy ball")
             << ", rounds late " << dynamics.rounds_late << (dynamics.eager ? ", eager" : "") << ", replicas "
             << dynamics.replicas;
}

namespace testing {
namespace {

OuterDynamics with_momentum(OuterDynamics dynamics, double momentum) {
  dynamics.momentum = momentum;
  return dynamics;
}

struct Column {
  OuterDynamics dynamics;
  std::array<double, 5> limits;  ///< at momentum 0, 0.5, 0.8, 0.9 and 0.95; to three places
};

TEST(Stability, LimitsAreThoseOfTheTable) {
  const Column table[] = {
      {{.rounds_late = 0}, {2.000, 1.500, 1.385, 1.357, 1.345}},
      {{.rounds_late = 1}, {1.000, 0.562, 0.345, 0.253, 0.187}},
      {{.rounds_late = 2}, {0.618, 0.312, 0.143, 0.081, 0.044}},
      {{.rounds_late = 1, .eager = true, .replicas = 2}, {2.000, 1.186, 0.867, 0.770, 0.720}},
      {{.rounds_late = 1, .eager = true, .replicas = 4}, {1.333, 0.766, 0.511, 0.416, 0.356}},
      {{.rounds_late = 1, .eager = true, .replicas = 8}, {1.143, 0.648, 0.414, 0.320, 0.256}},
      {{.rounds_late = 2, .eager = true, .replicas = 2}, {2.000, 0.921, 0.452, 0.303, 0.212}},
      {{.nesterov = false, .rounds_late = 0}, {2.0, 3.0, 3.6, 3.8, 3.9}},
      {{.nesterov = false, .rounds_late = 1}, {1.0, 0.5, 0.2, 0.1, 0.05}},
  };
  constexpr double momenta[] = {0, 0.5, 0.8, 0.9, 0.95};
  for (const auto& [dynamics, limits] : table) {
    for (size_t row = 0; row < limits.size(); ++row) {
      const OuterDynamics cell = with_momentum(dynamics, momenta[row]);
      EXPECT_NEAR(largest_stable_lr(cell), limits[row], 0.0005) << cell;
    }
  }
}

// ---- closed forms

constexpr double momenta[] = {0, 1e-9, 0.3, 0.9, 0.999, 1 - 1e-9};

TEST(Stability, WithoutDelayTheLimitIsAClosedForm) {
  EXPECT_EQ(largest_stable_lr({}), 2);
  for (const double m : momenta) {
    EXPECT_DOUBLE_EQ(largest_stable_lr({.momentum = m}), 2 * (1 + m) / (1 + 2 * m));
    EXPECT_DOUBLE_EQ(largest_stable_lr({.momentum = m, .nesterov = false}), 2 * (1 + m));
  }
}

TEST(Stability, OneRoundOfDelayLeavesHeavyBallOneMinusMomentum) {
  for (const double m : momenta) {
    EXPECT_NEAR(largest_stable_lr({.momentum = m, .nesterov = false, .rounds_late = 1}) / (1 - m), 1, 1e-9) << m;
  }
}

TEST(Stability, WithoutMomentumTheLimitIsASine) {
  for (const int64_t delay : {1, 2, 3, 10, 300, 1'000'000}) {
    const double closed_form = 2 * std::sin(M_PI / (2 * (2 * static_cast<double>(delay) + 1)));
    for (const bool nesterov : {true, false}) {
      EXPECT_NEAR(largest_stable_lr({.nesterov = nesterov, .rounds_late = delay}) / closed_form, 1, 1e-12) << delay;
    }
  }
}

TEST(Stability, EagerWithoutMomentumAllowsTwoReplicasTwoWhateverTheDelay) {
  for (const int64_t delay : {1, 2, 7, 300}) {
    EXPECT_NEAR(largest_stable_lr({.rounds_late = delay, .eager = true, .replicas = 2}), 2, 1e-12) << delay;
  }
}

TEST(Stability, EagerIsWithoutDelayForOneReplicaAndDelayedForVeryMany) {
  for (const double m : {0.0, 0.5, 0.9}) {
    const OuterDynamics delayed{.momentum = m, .rounds_late = 3};
    OuterDynamics eager = delayed;
    eager.eager = true;
    EXPECT_EQ(largest_stable_lr(eager), largest_stable_lr({.momentum = m}));
    eager.replicas = 1'000'000'000;
    EXPECT_NEAR(largest_stable_lr(eager) / largest_stable_lr(delayed), 1, 1e-7) << eager;
  }
}

// ---- an independent method: eigenvalues of a round

/// One round of replicas that get to the optimum, 0, in their inner steps. states: [any number, replicas, 2 +
/// rounds_late], of each replica the anchor, the velocity and the last deltas, newest first.
Tensor next(const Tensor& states, const OuterDynamics& dynamics, double lr) {
  const Tensor anchor = states.select(2, 0), velocity = states.select(2, 1), past = states.slice(2, 2), delta = anchor;
  const Tensor last = dynamics.rounds_late == 0 ? delta : states.select(2, 1 + dynamics.rounds_late);
  Tensor mean_delta = last.mean(1, /*keepdim=*/true).expand_as(delta);
  if (dynamics.eager) mean_delta = mean_delta + (delta - last) / dynamics.replicas;
  const Tensor speed = dynamics.momentum * velocity + mean_delta;
  const Tensor step = dynamics.nesterov ? mean_delta + dynamics.momentum * speed : speed;
  const Tensor deltas = torch::cat({delta.unsqueeze(2), past}, 2).slice(2, 0, dynamics.rounds_late);
  return torch::cat({(anchor - lr * step).unsqueeze(2), speed.unsqueeze(2), deltas}, 2);
}

/// By which factor the states grow per round, in the long run.
double growth(const OuterDynamics& dynamics, double lr) {
  at::set_num_threads(1);  // LAPACK's threads would wait for each other on a busy machine, sixty times as long
  const int64_t numbers = dynamics.replicas * (2 + dynamics.rounds_late);
  const Tensor units = torch::eye(numbers, torch::kDouble).view({numbers, dynamics.replicas, 2 + dynamics.rounds_late});
  return at::linalg_eigvals(next(units, dynamics, lr).reshape({numbers, numbers})).abs().max().item<double>();
}

constexpr double rounding = 1e-8;  // of eigenvalues; 0.1 % above the limit the states below grow by more per round

void expect_limit_parts_shrinking_from_growing(const OuterDynamics& dynamics) {
  const double limit = largest_stable_lr(dynamics);
  for (const double part : {0.01, 0.5, 0.9, 0.999}) EXPECT_LE(growth(dynamics, part * limit), 1 + rounding) << dynamics;
  EXPECT_GT(growth(dynamics, 1.001 * limit), 1 + rounding) << dynamics << ", limit " << limit;
}

TEST(Stability, LimitPartsShrinkingFromGrowingRounds) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 400; ++i) {
    OuterDynamics dynamics{.momentum = std::uniform_real_distribution(0.0, 0.99)(random)};
    dynamics.nesterov = draw(0, 3) > 0;
    dynamics.eager = draw(0, 1) == 1;
    dynamics.rounds_late = draw(dynamics.eager ? 1 : 0, 6);
    dynamics.replicas = draw(1, 5);
    expect_limit_parts_shrinking_from_growing(dynamics);
  }
}

TEST(Stability, LimitPartsShrinkingFromGrowingRoundsOfLargeDelay) {
  for (const double momentum : {0.0, 0.9}) {
    expect_limit_parts_shrinking_from_growing({.momentum = momentum, .rounds_late = 200});
    expect_limit_parts_shrinking_from_growing({.momentum = momentum, .nesterov = false, .rounds_late = 100});
    expect_limit_parts_shrinking_from_growing({.momentum = momentum, .rounds_late = 40, .eager = true, .replicas = 3});
  }
}

// ---- shape

TEST(Stability, LimitFallsWithDelay) {
  for (const int64_t replicas : {1, 3, 64}) {
    for (const double m : momenta) {
      OuterDynamics dynamics{.momentum = m, .eager = replicas > 1, .replicas = replicas};
      double last = 2;
      for (dynamics.rounds_late = 1; dynamics.rounds_late <= 500; ++dynamics.rounds_late) {
        const double limit = largest_stable_lr(dynamics);
        ASSERT_LT(limit, last) << dynamics;
        ASSERT_GT(limit, 0) << dynamics;
        last = limit;
      }
    }
  }
}

TEST(Stability, LimitFallsWithMomentumButForHeavyBallWithoutDelay) {
  for (const OuterDynamics& kind : {OuterDynamics{}, OuterDynamics{.rounds_late = 1}, OuterDynamics{.rounds_late = 300},
                                    OuterDynamics{.rounds_late = 2, .eager = true, .replicas = 2},
                                    OuterDynamics{.nesterov = false, .rounds_late = 1}}) {
    for (int percent = 1; percent < 100; ++percent) {
      const OuterDynamics less = with_momentum(kind, (percent - 1) / 100.0),
                          more = with_momentum(kind, percent / 100.0);
      EXPECT_LT(largest_stable_lr(more), largest_stable_lr(less)) << more;
    }
  }
}

TEST(Stability, EagerLimitFallsWithReplicasAndOthersDoNotKnowTheirNumber) {
  OuterDynamics eager{.momentum = 0.9, .rounds_late = 1, .eager = true, .replicas = 1};
  for (double last = 2; eager.replicas <= 64; ++eager.replicas) {
    const double limit = largest_stable_lr(eager);
    EXPECT_LT(limit, last) << eager;
    last = limit;
  }
  EXPECT_EQ(largest_stable_lr({.momentum = 0.9, .rounds_late = 1, .replicas = 64}),
            largest_stable_lr({.momentum = 0.9, .rounds_late = 1}));
}

// ---- errors

TEST(Stability, UnusableDynamicsAreRefusedByNameAndValue) {
  const auto refused = [](const OuterDynamics& dynamics, const std::vector<std::string>& says) {
    return is(thrown_by([&] { largest_stable_lr(dynamics); }), "c10::Error", says);
  };
  EXPECT_TRUE(refused({.momentum = 1}, {"momentum", "[0, 1)", "got 1"}));
  EXPECT_TRUE(refused({.momentum = -0.25}, {"momentum", "got -0.25"}));
  EXPECT_TRUE(refused({.momentum = NAN}, {"momentum", "got nan"}));
  EXPECT_TRUE(refused({.rounds_late = -2}, {"rounds_late", "got -2"}));
  EXPECT_TRUE(refused({.replicas = 0}, {"replicas", "got 0"}));
  EXPECT_TRUE(refused({.rounds_late = 0, .eager = true, .replicas = 2}, {"eager", "rounds_late", "got 0"}));
}

}  // namespace
}  // namespace testing
}  // namespace outerloop
