// How much memory does DiLoCo need beyond the model and the inner optimizer, and does a round allocate?

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/optim/adamw.h>
#include <outerloop/diloco.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <malloc.h>

#include <barrier>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "allocations.hpp"
#include "comm/gloo.hpp"
#include "report.hpp"

namespace outerloop::bench {
namespace {

constexpr int replicas = 2;
const std::vector<int64_t> sizes{1'000'000, 10'000'000, 50'000'000};  // parameters of each replica

/// c10's allocator of tensor memory, counted.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    tensors.add(static_cast<int64_t>(bytes));
    return base_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  Allocations tensors;

 private:
  c10::Allocator* base_ = c10::GetCPUAllocator();
};

/// A field of /proc/self/status, in bytes: VmRSS, or VmHWM, its highest value since reset_peak().
double status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != field + ":") continue;
    double kilobytes = 0;
    file >> kilobytes;
    return 1024 * kilobytes;
  }
  throw std::runtime_error("no " + field + " in /proc/self/status");
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// A model with its inner optimizer's state, as after a first step.
struct Training {
  explicit Training(int64_t numel) {
    for (const Tensor& part : at::zeros({numel}).tensor_split(150)) {
      params.push_back(part.clone().requires_grad_(true));
      params.back().mutable_grad() = at::full_like(params.back(), 1e-3, at::TensorOptions().requires_grad(false));
    }
    inner = std::make_unique<torch::optim::AdamW>(params, torch::optim::AdamWOptions(1e-3));
    inner->step();
  }
  std::vector<Tensor> params;
  std::unique_ptr<torch::optim::AdamW> inner;
};

/// What was allocated meanwhile, by all replicas together.
struct Count {
  int64_t tensors, largest_tensor, others, largest_other;
};
struct Cost {
  double bytes;       ///< at the peak of three rounds, of one replica
  Count rounds;       ///< in the second and third round
  Count all_reduces;  ///< in two bare all-reduces of as many elements
};

/// The replicas are threads of this process; the kernel's account of its memory is for all of them.
Cost measure(int64_t numel, CountingAllocator& memory) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Cost cost{};
  double before = 0;
  const auto restart = [&] { memory.tensors.reset(), allocations.reset(); };
  const auto counted = [&] {
    return Count{memory.tensors.count, memory.tensors.largest, allocations.count, allocations.largest};
  };
  std::barrier meet(replicas);
  const auto alone = [&](int rank, const auto& action) {
    meet.arrive_and_wait();
    if (rank == 0) action();
    meet.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < replicas; ++rank) {
    threads.emplace_back([&, rank] {
      Training training(numel);
      alone(rank, [&] {
        malloc_trim(0);  // else what the inner step left behind would be used first, and not be seen
        reset_peak();
        before = status("VmRSS");
      });
      const auto comm = comm::gloo_over(store, {.rank = rank, .size = replicas});
      DiLoCoOptimizer optimizer(std::move(training.inner), comm, {});
      optimizer.sync();
      alone(rank, restart);
      for (int i = 0; i < 2; ++i) optimizer.sync();
      alone(rank, [&] { cost.rounds = counted(), cost.bytes = (status("VmHWM") - before) / replicas; });
      const Tensor flat = at::zeros({numel});
      alone(rank, restart);
      for (int i = 0; i < 2; ++i) comm->all_reduce_sum(flat).wait();
      alone(rank, [&] { cost.all_reduces = counted(); });
    });
  }
  for (auto& thread : threads) thread.join();
  return cost;
}

void show(const char* what, const Count& count) {
  std::printf("  %-20s tensors %2lld, largest %4lld B; others %5lld, largest %8lld B\n", what,
              static_cast<long long>(count.tensors), static_cast<long long>(count.largest_tensor),
              static_cast<long long>(count.others), static_cast<long long>(count.largest_other));
}

void summary(const std::map<int64_t, Cost>& costs) {
  if (costs.size() < 2) return;  // a filter left none to compare
  const auto& [few, less] = *costs.begin();
  const auto& [many, more] = *costs.rbegin();
  const double slope = (more.bytes - less.bytes) / static_cast<double>(many - few);
  std::printf(
      "DiLoCo over Gloo, beyond model, gradients and inner state, per replica: %.2f bytes per parameter + %.1f MB; "
      "target: 12 bytes per parameter %s\n",
      slope, (less.bytes - slope * static_cast<double>(few)) / 1e6, verdict(slope < 12.05));
  std::printf(
      "Allocated by %d replicas; target: nothing of parameter size, that is, nothing larger than Gloo itself does\n",
      replicas);
  for (const auto& [numel, cost] : costs) {
    std::printf(
        "%lld parameters: %s\n", static_cast<long long>(numel),
        verdict(std::max(cost.rounds.largest_tensor, cost.rounds.largest_other) <= cost.all_reduces.largest_other));
    show("two rounds", cost.rounds);
    show("two bare all-reduces", cost.all_reduces);
  }
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop::bench;
  static CountingAllocator memory;
  c10::SetCPUAllocator(&memory, 1);
  std::map<int64_t, Cost> costs;
  for (const int64_t numel : sizes) {
    contender(
        "rounds/" + std::to_string(numel), 0, 1, [] {}, [&costs, numel] { costs[numel] = measure(numel, memory); });
  }
  return run(argc, argv, [&](const Medians&) { summary(costs); });
}
