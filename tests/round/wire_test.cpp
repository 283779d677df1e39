#include <gtest/gtest.h>

#include "round/replica.hpp"
#include "support/faults.hpp"

// What a round puts on the wire.

namespace outerloop {
namespace {

using testing::averaging;
using testing::Replica;
using testing::Tapped;

/// wire_bytes of one round over `params` on `size` ranks, the same on all.
int64_t bytes_of_a_round(int size, const std::vector<Tensor>& params) {
  const auto bytes = testing::run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
    std::vector<Tensor> mine;
    for (const auto& p : params) mine.push_back(testing::parameter(p));
    int64_t bytes = -1;
    LocalSGDOptimizer optimizer(
        torch::optim::SGD(mine, 1.0), comm,
        {.sync_every = 2, .sync = {.on_sync = [&](const SyncReport& report) { bytes = report.wire_bytes; }}});
    optimizer.sync();
    return bytes;
  });
  for (const int64_t other : bytes) EXPECT_EQ(other, bytes[0]);
  return bytes[0];
}

TEST(Wire, BytesAreThoseOfARingAllReduceOfFloat32) {
  const std::vector<Tensor> params{torch::zeros({100, 9}), torch::zeros({60}).to(at::kBFloat16)};
  for (const int size : {2, 3, 4}) EXPECT_EQ(bytes_of_a_round(size, params), 960 * 8 * (size - 1) / size);
}

TEST(Wire, BytesOfFloat64ParametersAreTwice) {
  EXPECT_EQ(bytes_of_a_round(2, {torch::zeros({10}), torch::zeros({7}, at::kDouble)}), 10 * 4 + 7 * 8);
}

TEST(Wire, BytesOfAGroupOfOneAreNone) { EXPECT_EQ(bytes_of_a_round(1, {torch::zeros({10})}), 0); }

TEST(Wire, HoldsOneReductionPerStateType) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    const std::vector<Tensor> params{
        testing::parameter(torch::zeros({5})), testing::parameter(torch::zeros({7}, at::kDouble)),
        testing::parameter(torch::zeros({11}).to(at::kHalf)), testing::parameter(torch::zeros({0}))};
    LocalSGDOptimizer optimizer(torch::optim::SGD(params, 1.0), tapped, {.sync_every = 1});
    tapped->calls.clear();
    optimizer.step();
    std::vector<std::tuple<at::ScalarType, int64_t>> reductions;
    for (const auto& call : tapped->calls) {
      if (call.name == "all_reduce_sum") reductions.emplace_back(call.dtype, call.numel);
    }
    EXPECT_EQ(reductions, (std::vector<std::tuple<at::ScalarType, int64_t>>{{at::kFloat, 16}, {at::kDouble, 7}}));
    EXPECT_EQ(tapped->calls.size(), 3u);  // and one exchange of headers
    EXPECT_EQ(tapped->calls.front().name, "all_gather");
  });
}

TEST(Wire, IsSilentBetweenRounds) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    Replica replica(tapped, averaging({}, 3));
    tapped->calls.clear();
    replica.step(1);
    replica.optimizer.skip_step();
    EXPECT_TRUE(tapped->calls.empty());
    replica.step(1);
    EXPECT_FALSE(tapped->calls.empty());
  });
}

TEST(Wire, IsNotUsedByAGroupOfOne) {
  for (const Start start : {Start::broadcast, Start::verify, Start::trust}) {
    const auto tapped = std::make_shared<Tapped>(connect_alone());
    Replica replica(tapped, averaging({.start = start}, 2));
    for (int t = 0; t < 4; ++t) replica.step(1);
    replica.optimizer.sync();
    replica.optimizer.add_param_group({{testing::parameter(torch::zeros({2}))}});
    replica.step(1);
    EXPECT_EQ(replica.optimizer.rounds(), 3);
    EXPECT_TRUE(tapped->calls.empty());
  }
}

}  // namespace
}  // namespace outerloop
