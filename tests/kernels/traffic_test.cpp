#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/backend.hpp"
#include "kernels/cases.hpp"
#include "kernels/shim_backend.hpp"

/// What the CUDA kernels do, counted in the shim: bytes and launches.

namespace outerloop {
namespace {

using testing::Tensors;

struct Traffic {
  double sent_bytes, applied_bytes;  ///< per element
  double wide;                       ///< share of the float32 and float64 vectors' bytes that moved 16 at a time
  uint64_t launches;
};

Traffic traffic_of(const Tensors& values, bool has_velocity = true, double keep_local = 0) {
  testing::Backend& backend = *testing::backends()[0];
  Tensors params;
  int64_t numel = 0;
  for (const Tensor& value : values) {
    params.push_back(backend.put_param(value, 0));
    numel += value.numel();
  }
  const auto flat = [&] {
    return backend.put_flat(at::zeros({numel}, values[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  };
  const Tensor anchor = flat(), wire = flat(), velocity = has_velocity ? flat() : Tensor();
  const auto n = static_cast<double>(numel);

  shim::reset_counters();
  backend.send(params, anchor, wire, 1);
  const shim::Counters sent = shim::counters();
  shim::reset_counters();
  backend.apply(params, anchor, velocity, wire, {.keep_local = keep_local});
  const shim::Counters applied = shim::counters();
  return {static_cast<double>(sent.bytes_loaded + sent.bytes_stored) / n,
          static_cast<double>(applied.bytes_loaded + applied.bytes_stored) / n,
          static_cast<double>(16 * sent.wide_accesses) / (n * 2 * static_cast<double>(anchor.element_size())),
          sent.launches + applied.launches};
}

TEST(Traffic, IsTwelveAndTwentyFourBytesForFloat32) {
  const Traffic traffic = traffic_of({at::ones({100000})});
  EXPECT_EQ(traffic.sent_bytes, 12);
  EXPECT_EQ(traffic.applied_bytes, 24);
}

TEST(Traffic, IsTenAndTwentyTwoBytesForSixteenBitParameters) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Traffic traffic = traffic_of({at::ones({100000}, type)});
    EXPECT_EQ(traffic.sent_bytes, 10);
    EXPECT_EQ(traffic.applied_bytes, 22);
  }
}

TEST(Traffic, IsTwiceThatForFloat64) {
  const Traffic traffic = traffic_of({at::ones({100000}, at::kDouble)});
  EXPECT_EQ(traffic.sent_bytes, 24);
  EXPECT_EQ(traffic.applied_bytes, 48);
}

TEST(Traffic, SavesTheVelocityWhereThereIsNoneAndReadsParamsOnlyToMix) {
  EXPECT_EQ(traffic_of({at::ones({100000})}, false).applied_bytes, 16);
  EXPECT_EQ(traffic_of({at::ones({100000})}, true, 0.5).applied_bytes, 28);
}

TEST(Traffic, IsTwoLaunchesWhateverTheNumberOfTensors) {
  for (const size_t count : {1, 300, 5000}) {
    EXPECT_EQ(traffic_of(Tensors(count, at::ones({5}))).launches, 2u) << count;
  }
}

TEST(Traffic, MovesSixteenBytesAtATimeButAtTheEndsOfTensors) {
  const Traffic aligned = traffic_of({at::ones({100000})});
  EXPECT_EQ(aligned.wide, 1.5);  // anchor, wire, and params, of the former two's bytes
  const Traffic odd = traffic_of({at::ones({3}), at::ones({99997})});
  EXPECT_GT(odd.wide, 0.999);  // params are not aligned where the flat vectors are
}

/// A step apart without what is asked for by the sum alone.
shim::Counters apart(at::ScalarType type, int64_t numel, bool has_velocity) {
  testing::Backend& backend = *testing::backends()[0];
  const auto flat = [&] { return backend.put_flat(at::zeros({numel}, type)); };
  const Tensor anchor = flat(), wire = flat();
  const Tensor velocity = has_velocity ? flat() : Tensor(), next_velocity = has_velocity ? flat() : Tensor();
  shim::reset_counters();
  backend.step_apart(anchor, velocity, wire, next_velocity, {}, nullptr);
  return shim::counters();
}

TEST(Traffic, IsTwentyBytesForAStepApartAllOfThemSixteenAtATime) {
  constexpr int64_t n = 100000;
  for (const bool has_velocity : {false, true}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const shim::Counters counted = apart(type, n, has_velocity);
      const uint64_t read = (has_velocity ? 3 : 2) * n * c10::elementSize(type);
      const uint64_t written = (has_velocity ? 2 : 1) * n * c10::elementSize(type);
      EXPECT_EQ(counted.bytes_loaded, read);
      EXPECT_EQ(counted.bytes_stored, written);
      EXPECT_EQ(16 * counted.wide_accesses, read + written);
      EXPECT_EQ(counted.launches, 1u);
    }
  }
}

}  // namespace
}  // namespace outerloop
