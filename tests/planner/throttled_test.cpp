#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <outerloop/diloco.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "planner/link.hpp"
#include "support/ranks.hpp"
#include "support/tensors.hpp"

/// A slow link changes when things happen and nothing else; what it has to carry at a time is a fragment.

namespace outerloop::planner {
namespace {

using testing::same_bits;

constexpr int64_t layers = 8, width = 6, layer_bytes = 4 * width * width;
constexpr int64_t window = 8;  // inner steps

struct Trained {
  std::vector<Tensor> bits;              ///< losses of all steps, and what the training came to
  std::vector<int64_t> sent, announced;  ///< bytes of each round: that went into the group, and by its report
  int64_t peak_bytes = 0;                ///< that one step gives to the network
};

/// A net of layers with values of their own on each replica: all that a step computes depends on the rounds before.
Trained train(const std::shared_ptr<testing::Tapped>& comm, const Streaming& streaming) {
  std::vector<Tensor> params;
  for (int64_t i = 0; i < layers; ++i) params.push_back(testing::parameter(testing::normal({width, width}, i)));
  Trained trained;
  std::map<int64_t, int64_t> given;
  DiLoCoOptimizer optimizer(
      torch::optim::AdamW(params, torch::optim::AdamWOptions(0.01)), comm,
      {.sync_every = window, .outer_lr = 0.3, .streaming = streaming, .sync = {.on_sync = [&](const auto& report) {
                                                                        trained.announced.push_back(report.wire_bytes);
                                                                        given[report.inner_step] += report.wire_bytes;
                                                                      }}});
  comm->calls.clear();
  for (int64_t step = 0; step < 4 * window; ++step) {
    optimizer.zero_grad();
    Tensor x = testing::normal({4, width}, 2 * step + comm->rank());
    for (const Tensor& param : params) x = x + torch::tanh(torch::matmul(x, param)) / layers;
    const Tensor loss = x.square().mean();
    loss.backward();
    optimizer.step();
    trained.bits.push_back(loss.detach());
  }
  optimizer.drain();
  for (const auto& call : comm->calls) {
    if (call.name == "all_reduce_sum") trained.sent.push_back(call.numel * 4);
  }
  for (const auto& [step, bytes] : given) trained.peak_bytes = std::max(trained.peak_bytes, bytes);
  for (const Tensor& anchor : optimizer.anchors()) trained.bits.push_back(anchor);
  for (const Tensor& param : params) trained.bits.push_back(param.detach());
  return trained;
}

/// A round of the whole takes some 5 ms, longer than a window, and longer on one of the replicas.
std::shared_ptr<testing::Tapped> throttled(const std::shared_ptr<Communicator>& group) {
  const Link link{.bits_per_second = 8.0 * layers * layer_bytes / 4e-3, .latency_seconds = 5e-4};
  return behind(link, group, [slower = group->rank() == 1](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(slower ? 1.5 * seconds : seconds));
  });
}

struct Streamed {
  std::string name;
  Streaming streaming;
  int64_t fragments = 1;
};
void PrintTo(const Streamed& streamed, std::ostream* out) { *out << streamed.name; }

class Throttled : public ::testing::TestWithParam<Streamed> {};

TEST_P(Throttled, LinkChangesNoBit) {
  testing::run_ranks(2, [](const std::shared_ptr<Communicator>& group) {
    const Trained expected = train(std::make_shared<testing::Tapped>(group), GetParam().streaming);
    const Trained actual = train(throttled(group), GetParam().streaming);
    EXPECT_TRUE(same_bits(actual.bits, expected.bits));
    EXPECT_FALSE(torch::equal(expected.bits[0], expected.bits[4 * window - 1]));  // it does train
  });
}

TEST_P(Throttled, LinkCarriesOneFragmentAStep) {
  testing::run_ranks(2, [](const std::shared_ptr<Communicator>& group) {
    const Trained trained = train(throttled(group), GetParam().streaming);
    EXPECT_GE(trained.sent.size(), 3U * static_cast<size_t>(GetParam().fragments));
    EXPECT_EQ(trained.sent, trained.announced);
    EXPECT_EQ(trained.peak_bytes, layers * layer_bytes / GetParam().fragments);
  });
}

INSTANTIATE_TEST_SUITE_P(
    By, Throttled,
    ::testing::Values(Streamed{"whole", {}}, Streamed{"delayed", {.delay = 7}},
                      Streamed{"kept", {.delay = 5, .keep_local = 0.5}},
                      Streamed{"fragments", {.fragments = FragmentPlan::sequential(4), .delay = 2}, 4},
                      Streamed{"crossing", {.fragments = FragmentPlan::strided(8), .delay = 6}, 8},
                      Streamed{"eager", {.fragments = FragmentPlan::sequential(2), .delay = window, .eager = true}, 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace outerloop::planner
