#include <outerloop/outerloop.hpp>

#include <ATen/Parallel.h>

#include <filesystem>
#include <thread>

#include "optimizer/models.hpp"

/// The element loops run on at::get_num_threads() threads, and their bits do not tell on how many.

namespace outerloop::testing {
namespace {

/// Calls body() on a new thread for which libtorch was told to use `threads` threads.
template <class Body>
void with_threads(int threads, Body body) {
  std::thread([&] {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    body();
    at::set_num_threads(before);
  }).join();
}

constexpr int64_t many = 300'007;  // several blocks for each thread, and a ragged end

Tensor wave(double phase) { return torch::sin(torch::arange(many, at::kDouble) * 0.37 + phase); }

/// Every stage on parameters of this type, and all that they return.
std::vector<Tensor> stages(at::ScalarType dtype) {
  const auto state = dtype == at::kDouble ? at::kDouble : at::kFloat;
  FlatParams params({wave(1).slice(0, 0, 1001).to(dtype), wave(2).to(dtype), wave(3).slice(0, 0, 65'536).to(dtype)});
  const Tensor start = torch::sin(torch::arange(params.numel(), at::kDouble)).to(state);
  Tensor anchor = start.clone(), velocity = start * 0.25;
  const Tensor delta = pseudogradient(anchor, params);
  const DeltaSummary summary = summarize(delta);
  nesterov_step(anchor, velocity, delta, 0.7, 0.9);
  average_step(anchor, delta);
  params.scatter(anchor, 0.375);
  return {delta,
          anchor,
          velocity,
          params.gather(),
          torch::tensor({summary.norm}, at::kDouble),
          torch::tensor({static_cast<int64_t>(fingerprint(anchor))})};
}

/// Values of three parameters, made before threads matter: libtorch's own loops may depend on their number.
std::vector<Tensor> values(double phase) {
  return {wave(phase).to(at::kFloat), wave(phase + 1).to(at::kBFloat16), wave(phase + 2)};
}

/// Parameters, anchors and reported norms after a round from start to a, and one from there to b.
std::vector<Tensor> rounds(const std::vector<Tensor>& start, const std::vector<Tensor>& a,
                           const std::vector<Tensor>& b) {
  std::vector<Tensor> params;
  for (const Tensor& value : start) params.push_back(leaf(value.clone()));
  std::vector<double> norms;
  const auto note = [&](const SyncReport& report) {
    norms.insert(norms.end(), {report.delta_norm, report.mean_delta_norm});
  };
  DiLoCoOptimizer optimizer(torch::optim::SGD(params, 0.1), connect_alone(), {.sync = {.on_sync = note}});
  for (const auto* local : {&a, &b}) {
    assign(params, *local);
    optimizer.sync();
  }
  std::vector<Tensor> result = copies(params);
  for (const Tensor& anchor : optimizer.anchors()) result.push_back(anchor);
  result.push_back(torch::tensor(norms, at::kDouble));
  return result;
}

TEST(Threads, OneTwoAndThreeGiveTheSameBitsInEveryStage) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    std::vector<Tensor> one, more;
    with_threads(1, [&] { one = stages(dtype); });
    for (const int threads : {2, 3}) {
      with_threads(threads, [&] { more = stages(dtype); });
      EXPECT_TRUE(same_bits(one, more)) << dtype << " on " << threads << " threads";
    }
  }
}

TEST(Threads, OneTwoAndThreeGiveTheSameBitsInARound) {
  const auto start = values(1), a = values(2), b = values(3);
  std::vector<Tensor> one, more;
  with_threads(1, [&] { one = rounds(start, a, b); });
  for (const int threads : {2, 3}) {
    with_threads(threads, [&] { more = rounds(start, a, b); });
    EXPECT_TRUE(same_bits(one, more)) << threads << " threads";
  }
}

TEST(Threads, KernelsUseAsManyAsLibtorchWasToldTo) {
  const auto running = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const Tensor flat = wave(1);
  // A new thread starts without helpers, and keeps those that its first parallel loop made.
  for (const int threads : {1, 2, 3}) {
    with_threads(threads, [&] {
      const auto before = running();
      fingerprint(flat);
      EXPECT_EQ(running() - before, threads - 1);
    });
  }
}

}  // namespace
}  // namespace outerloop::testing
