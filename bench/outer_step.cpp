// How fast is the outer step, the network left out, against what ATen offers and against the memory itself?

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <outerloop/flat_params.hpp>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "kernels/blocks.hpp"
#include "kernels/cpu.hpp"
#include "kernels/loops.hpp"
#include "params/flat_params.hpp"
#include "report.hpp"

namespace outerloop::bench {
namespace {

constexpr int threads = 2, replicas = 2;
constexpr double lr = 0.7, momentum = 0.9;
constexpr int64_t bytes_per_element = 12 + 24;  // send + apply, see kernels/cpu.hpp

/// One outer step's tensors, shared by all contenders of its size. None allocates what could be kept.
struct Problem {
  Problem(int64_t numel, int64_t count)
      : anchor(at::randn({numel})), velocity(at::zeros({numel})), wire(at::zeros({numel})) {
    anchors = anchor.tensor_split(count);
    velocities = velocity.tensor_split(count);
    deltas = wire.tensor_split(count);
    for (size_t i = 0; i < anchors.size(); ++i) {
      params.push_back(anchors[i].clone());
      params[i].mutable_grad() = deltas[i];
    }
    flat = std::make_unique<FlatParams>(params);
    sgd = std::make_unique<torch::optim::SGD>(params, torch::optim::SGDOptions(lr).momentum(momentum).nesterov(true));
  }

  /// Stands for the inner steps. Without it deltas are 0 and velocities sink into slow subnormal numbers.
  void inner_steps() { at::_foreach_add_(params, 1e-3); }

  void ours() {
    kernels::send(flat->impl().pull(), anchor, wire, 1);
    kernels::apply(flat->impl().pull(), anchor, velocity, wire,
                   {.inverse_weight = 1.0 / replicas, .lr = lr, .momentum = momentum, .nesterov = true});
    flat->impl().push();
  }

  /// 80 bytes per element: one pass for each operation.
  void chain() {
    for (size_t i = 0; i < params.size(); ++i) at::sub_out(deltas[i], anchors[i], params[i]);
    for (size_t i = 0; i < params.size(); ++i) params[i].copy_(anchors[i]);
    for (Tensor& delta : deltas) delta.div_(replicas);
    sgd->step();
    for (size_t i = 0; i < params.size(); ++i) anchors[i].copy_(params[i]);
  }

  /// 40 bytes per element: the outer step on the anchor itself, the mean folded into its lr.
  void composition(const std::vector<Tensor>& delta) {
    at::_fused_sgd_(anchors, delta, velocities, 0, momentum, lr / replicas, 0, true, false, false);
    at::_foreach_copy_(params, anchors);
  }
  void foreach () { composition(at::_foreach_sub(anchors, params)); }
  void foreach_into_buffers() {
    for (size_t i = 0; i < params.size(); ++i) at::sub_out(deltas[i], anchors[i], params[i]);
    composition(deltas);
  }

  Tensor anchor, velocity, wire;
  std::vector<Tensor> params, anchors, velocities, deltas;
  std::unique_ptr<FlatParams> flat;
  std::unique_ptr<torch::optim::SGD> sgd;
};

/// Made at first use, so that a filter on the command line saves their memory.
Problem& problem(int64_t numel, int64_t count) {
  static std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Problem>> made;
  auto& entry = made[{numel, count}];
  if (!entry) entry = std::make_unique<Problem>(numel, count);
  return *entry;
}

// ---- STREAM: what the memory gives, with and without a detour around the caches ----

/// body(to, from, and_from, n) for every block.
template <class Body>
void over_blocks(Problem& p, const Body& body) {
  float* to = p.wire.mutable_data_ptr<float>();
  const float *from = p.anchor.const_data_ptr<float>(), *and_from = p.velocity.const_data_ptr<float>();
  kernels::cpu::for_each_block(p.wire.numel(), [&](int64_t, int64_t begin, int64_t end) {
    body(to + begin, from + begin, and_from + begin, end - begin);
  });
}

OUTERLOOP_CLONES void triad_run(float* __restrict to, const float* __restrict a, const float* __restrict b, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = a[i] + 3 * b[i];
}

void copy(Problem& p) {
  over_blocks(p,
              [](float* to, const float* from, const float*, int64_t n) { std::memcpy(to, from, n * sizeof(float)); });
}
void copy_past_caches(Problem& p) {
  over_blocks(p, [](float* to, const float* from, const float*, int64_t n) {
    kernels::cpu::stream(to, from, n);
    kernels::cpu::stream_fence();
  });
}
void triad(Problem& p) {
  over_blocks(p, [](float* to, const float* a, const float* b, int64_t n) { triad_run(to, a, b, n); });
}
void triad_past_caches(Problem& p) {
  over_blocks(p, [](float* to, const float* a, const float* b, int64_t n) {
    alignas(64) float tile[kernels::cpu::tile_size];
    for (int64_t i = 0; i < n; i += kernels::cpu::tile_size) {
      const int64_t m = std::min(kernels::cpu::tile_size, n - i);
      triad_run(tile, a + i, b + i, m);
      kernels::cpu::stream(to + i, tile, m);
    }
    kernels::cpu::stream_fence();
  });
}

// ---- contenders ----

const std::vector<int64_t> sizes{1'000'000, 10'000'000, 100'000'000}, counts{1, 150, 3000};

std::string name(const char* what, int64_t numel, int64_t count) {
  return std::string(what) + "/10^" + std::to_string(std::lround(std::log10(numel))) + "/" + std::to_string(count);
}

int64_t calls(int64_t numel) { return std::max<int64_t>(2, 40'000'000 / numel); }

void add(int64_t numel, int64_t count, const char* what, void (Problem::*run)()) {
  contender(
      name(what, numel, count), bytes_per_element * numel, calls(numel), [=] { problem(numel, count).inner_steps(); },
      [=] { (problem(numel, count).*run)(); });
}
void add_stream(int64_t numel, int64_t bytes, const char* what, void (*run)(Problem&)) {
  contender(
      name(what, numel, 1), bytes * numel, calls(numel), [=] { problem(numel, 1); }, [=] { run(problem(numel, 1)); });
}

void summary(const Medians& seconds) {
  std::printf("Outer step, %d threads; targets: 2.6 x the chain, 1.25 x the composition, 80 %% of STREAM per byte\n",
              threads);
  std::printf("%-10s %-8s %9s %9s | %-16s | %-16s | %-22s\n", "elements", "tensors", "ms", "GB/s", "x chain",
              "x composition", "% of STREAM, GB/s");
  for (const int64_t numel : sizes) {
    for (const int64_t count : counts) {
      try {
        const auto time = [&](const char* what, int64_t of) { return seconds.at(name(what, numel, of)); };
        const double ours = time("ours", count), rate = bytes_per_element * numel / ours / 1e9;
        const double chain = time("chain", count) / ours;
        const double best = std::min(time("foreach", count), time("foreach_into_buffers", count)) / ours;
        const double copying = 8.0 * numel / std::min(time("copy", 1), time("copy_past_caches", 1)) / 1e9;
        const double adding = 12.0 * numel / std::min(time("triad", 1), time("triad_past_caches", 1)) / 1e9;
        const double stream = std::max(copying, adding);
        std::printf("%-10lld %-8lld %9.3f %9.1f | %5.2f %-10s | %5.2f %-10s | %4.0f of %5.1f %s\n",
                    static_cast<long long>(numel), static_cast<long long>(count), ours * 1e3, rate, chain,
                    verdict(chain >= 2.6), best, verdict(best >= 1.25), 100 * rate / stream, stream,
                    verdict(rate >= 0.8 * stream));
      } catch (const std::out_of_range&) {  // left out by a filter
      }
    }
  }
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop::bench;
  const at::NoGradGuard no_grad;
  at::set_num_threads(threads);
  for (const int64_t numel : sizes) {
    for (const int64_t count : counts) {
      add(numel, count, "ours", &Problem::ours);
      add(numel, count, "chain", &Problem::chain);
      add(numel, count, "foreach", &Problem::foreach);
      add(numel, count, "foreach_into_buffers", &Problem::foreach_into_buffers);
    }
    add_stream(numel, 8, "copy", copy);
    add_stream(numel, 8, "copy_past_caches", copy_past_caches);
    add_stream(numel, 12, "triad", triad);
    add_stream(numel, 12, "triad_past_caches", triad_past_caches);
  }
  return run(argc, argv, summary);
}
