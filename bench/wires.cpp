// What do codecs cost: their sends and applies against a copy, and a whole round over a slow link against float32?

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <outerloop/diloco.hpp>

#include <cmath>
#include <memory>
#include <thread>

#include "codec/known.hpp"
#include "kernels/coded.hpp"
#include "params/flat_params.hpp"
#include "report.hpp"
#include "round/coded_wire.hpp"

namespace outerloop::bench {
namespace {

constexpr int threads = 2, replicas = 2;
constexpr int64_t numel =
    12'208 * 8192;  // 10^8, in shards of whole tiles: the echo is of one shape with what it answers
constexpr double bits_per_second = 1e9;

/// A group of two whose other member does what this one does, at the far end of a link: what is sent takes its time,
/// what arrives is what was sent.
class Echo final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return replicas; }
  at::Device device() const override { return at::kCPU; }
  Pending all_reduce_sum(Tensor flat) override {
    pass(all_reduce_bytes(static_cast<int64_t>(flat.nbytes()), replicas));
    flat.mul_(replicas);
    return {};
  }
  Pending all_gather(Tensor rows, Tensor flat) override {
    pass(static_cast<int64_t>(flat.nbytes()) * (replicas - 1));
    rows.view({replicas, -1}).copy_(flat.view({1, -1}).expand({replicas, -1}));
    return {};
  }
  Pending all_to_all(Tensor out, Tensor in) override {
    pass(static_cast<int64_t>(in.nbytes()) / replicas * (replicas - 1));
    out.view({replicas, -1}).copy_(in.view({replicas, -1})[0].expand({replicas, -1}));
    return {};
  }
  Pending broadcast(Tensor, int) override { return {}; }
  bool throttled = true;

 private:
  void pass(int64_t bytes) const {
    if (throttled)
      std::this_thread::sleep_for(std::chrono::duration<double>(8.0 * static_cast<double>(bytes) / bits_per_second));
  }
};

struct Named {
  std::string name;
  std::shared_ptr<const Codec> codec;
  std::optional<ErrorFeedback> feedback = std::nullopt;
};

std::vector<Named> all() {
  using namespace codecs;
  return {{"fp32", fp32()},
          {"fp16", fp16()},
          {"bf16", bf16()},
          {"int8", int8()},
          {"int8_feedback", int8(), ErrorFeedback{}},
          {"fp8_e4m3", fp8_e4m3()},
          {"int4", int4()},
          {"nf4", nf4()},
          {"e2m1", e2m1()},
          {"e3m0", e3m0()},
          {"top_k", top_k()}};
}

/// What all contenders share; of optimizers there is memory for one.
struct Problem {
  Problem() : param(at::randn({numel})), flat({param}), anchor(at::randn({numel})), copy(at::empty({numel})) {}

  void move() {
    const at::NoGradGuard no_grad;
    param.add_(1e-3);
  }
  void hold(const Named& codec) {
    move();
    if (optimizer && held == codec.name) return;
    optimizer.reset();
    held = codec.name;
    param.requires_grad_(true);
    const SyncOptions sync{.codec = codec.codec, .error_feedback = codec.feedback, .start = Start::trust};
    const auto echo = std::make_shared<Echo>();
    optimizer = std::make_unique<DiLoCoOptimizer>(torch::optim::SGD({param}, 0.1), echo, DiLoCoOptions{.sync = sync});
    echo->throttled = false;
    optimizer->sync();  // buffers are made in the first round
    echo->throttled = true;
  }

  Tensor param;
  FlatParams flat;
  Tensor anchor, copy;
  std::string held;
  std::unique_ptr<DiLoCoOptimizer> optimizer;
};

double bytes_of_send(const Codec& codec) { return 8.0 * numel + static_cast<double>(codec.wire_bytes(numel)); }

void summary(const Medians& seconds) {
  const auto of = [&](const std::string& what) {
    const auto found = seconds.find(what);
    return found == seconds.end() ? std::nan("") : found->second;
  };
  const double copy = 8.0 * numel / of("copy") / 1e9, plain = of("round/fp32");
  std::printf("%lld elements, %d threads; a copy moves %.1f GB/s; rounds over %.0f Gbit/s, %d replicas\n",
              static_cast<long long>(numel), threads, copy, bits_per_second / 1e9, replicas);
  std::printf("%-14s %12s %12s %12s %14s\n", "codec", "send, GB/s", "of the copy", "round, ms", "fp32 / this");
  for (const Named& each : all()) {
    const double send = bytes_of_send(*each.codec) / of("send/" + each.name) / 1e9, round = of("round/" + each.name);
    std::printf("%-14s %12.1f %12.2f %12.1f %14.2f\n", each.name.c_str(), send, send / copy, round * 1e3,
                plain / round);
    if (each.name != "fp32" && !std::isnan(round)) {
      std::printf("  no slower than fp32: %s\n", verdict(round <= plain));
    }
  }
  const double int8 = bytes_of_send(*codecs::int8()) / of("send/int8") / 1e9 / copy, faster = plain / of("round/int8");
  std::printf("send of int8 / copy, at least 0.8: %.2f %s\n", int8, verdict(int8 >= 0.8));
  std::printf("round of fp32 / int8, at least 3.7: %.2f %s\n", faster, verdict(faster >= 3.7));
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop;
  using namespace outerloop::bench;
  at::set_num_threads(threads);
  Problem problem;
  contender(
      "copy", 8 * numel, 2, [] {}, [&] { problem.copy.copy_(problem.anchor); });
  std::vector<std::unique_ptr<round::CodedWire>> wires;
  const std::vector<Named> codecs = all();
  for (const Named& each : codecs) {
    contender(
        "round/" + each.name, 0, 1, [&] { problem.hold(each); }, [&] { problem.optimizer->sync(); });
    if (codec::is_plain(*each.codec) || each.feedback) continue;
    wires.push_back(std::make_unique<round::CodedWire>(*each.codec, numel, 1, 0));
    if (!wires.back()->fused()) continue;
    contender(
        "send/" + each.name, static_cast<int64_t>(bytes_of_send(*each.codec)), 2, [] {},
        [&problem, wire = wires.back().get()] {
          kernels::send(problem.flat.impl().pull(), problem.anchor, wire->rows(0), {});
        });
  }
  return run(argc, argv, summary);
}
