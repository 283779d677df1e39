#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// What a round sends: one sum per bucket, in float32 or float64, and one header.

namespace outerloop::testing {
namespace {

using torch::optim::SGD;

/// The collectives of the second round of 30 parameters of these types, the same on both ranks.
std::vector<Tapped::Call> round_of(const std::vector<at::ScalarType>& dtypes) {
  return run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> params;
    for (size_t i = 0; i < 30; ++i) params.push_back(leaf(eighths({3}, 0).to(dtypes[i % dtypes.size()])));
    const auto tapped = std::make_shared<Tapped>(comm);
    DiLoCoOptimizer optimizer(SGD(params, 0.5), tapped, {.sync_every = 1});
    step_with_grad(optimizer, params, 1);
    tapped->calls.clear();
    step_with_grad(optimizer, params, 1);
    return tapped->calls;
  })[0];
}

TEST(Collectives, ARoundIsOneHeaderAndOneSumWhateverTheMixtureOfFloatsUpTo32Bits) {
  for (const auto& dtypes : std::vector<std::vector<at::ScalarType>>{
           {at::kFloat}, {at::kBFloat16}, {at::kHalf}, {at::kFloat, at::kHalf, at::kBFloat16}}) {
    const auto calls = round_of(dtypes);
    ASSERT_EQ(calls.size(), 2);
    EXPECT_EQ(calls[0].name, "all_gather");
    EXPECT_EQ(calls[1].name, "all_reduce_sum");
    EXPECT_EQ(calls[1].dtype, at::kFloat);
    EXPECT_EQ(calls[1].numel, 90);
  }
}

TEST(Collectives, Float64ParametersAddASumOfTheirOwn) {
  const auto calls = round_of({at::kFloat, at::kDouble, at::kBFloat16});
  ASSERT_EQ(calls.size(), 3);
  EXPECT_EQ(calls[0].name, "all_gather");
  for (const size_t i : {1, 2}) EXPECT_EQ(calls[i].name, "all_reduce_sum");
  const bool float64_last = calls[2].dtype == at::kDouble;
  EXPECT_EQ(calls[float64_last ? 1 : 2].dtype, at::kFloat);
  EXPECT_EQ(calls[float64_last ? 1 : 2].numel, 60);
  EXPECT_EQ(calls[float64_last ? 2 : 1].dtype, at::kDouble);
  EXPECT_EQ(calls[float64_last ? 2 : 1].numel, 30);
}

TEST(Collectives, MeanEqualsADoubleReferenceForAnyNumberOfReplicas) {
  for (const int size : {2, 3, 5}) {
    run_ranks(size, [size](std::shared_ptr<Communicator> comm) {
      const auto target = [](int rank) {
        return torch::sin(torch::arange(7, at::kDouble) + 10 * rank);
      };  // 7: no multiple of size
      const auto param = leaf(torch::zeros({7}));
      LocalSGDOptimizer optimizer(SGD({param}, 1), comm, {.sync_every = 1});
      param.mutable_grad() = -target(comm->rank()).to(at::kFloat);
      optimizer.step();
      Tensor mean = torch::zeros({7}, at::kDouble);
      for (int rank = 0; rank < size; ++rank) mean += target(rank) / size;
      EXPECT_TRUE(torch::allclose(param.to(at::kDouble), mean, 0, 1e-7 * size)) << size << " replicas";
    });
  }
}

TEST(Collectives, Bfloat16AndFloat16AreAveragedInFloat32) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      // Locals 1, 1, 1 + 2^-7: a bfloat16 cannot hold their sum.
      const auto param = leaf(torch::ones({5}).to(dtype));
      LocalSGDOptimizer optimizer(SGD({param}, 1), comm, {.sync_every = 1});
      step_with_grad(optimizer, {param}, comm->rank() == 2 ? -0.0078125 : 0);
      EXPECT_TRUE(torch::allclose(optimizer.anchors()[0], torch::full({5}, 1 + 0.0078125 / 3), 0, 1e-7));
      EXPECT_TRUE(same_bits(param, optimizer.anchors()[0].to(dtype)));
    }
  });
}

TEST(Collectives, TensorsAreAveragedAcrossReplicasAndNeverWithEachOther) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto a = leaf(torch::zeros({4})), b = leaf(torch::full({4}, 64.0F));
    LocalSGDOptimizer optimizer(SGD({a, b}, 1), comm, {.sync_every = 1});
    step_with_grad(optimizer, {a, b}, comm->rank());
    EXPECT_TRUE(same_bits(a, torch::full({4}, -0.5F)));
    EXPECT_TRUE(same_bits(b, torch::full({4}, 63.5F)));
  });
}

TEST(Collectives, AGroupOfOneNeverCommunicates) {
  const auto tapped = std::make_shared<Tapped>(connect_alone());
  const auto a = leaf(eighths({3}, 0)), b = leaf(eighths({3}, 0).to(at::kDouble));
  DiLoCoOptimizer optimizer(SGD({a, b}, 0.5), tapped, {.sync_every = 2});
  for (int step = 1; step <= 4; ++step) step_with_grad(optimizer, {a, b}, 1);
  optimizer.sync();
  EXPECT_EQ(optimizer.rounds(), 3);
  EXPECT_TRUE(tapped->calls.empty());
}

}  // namespace
}  // namespace outerloop::testing
