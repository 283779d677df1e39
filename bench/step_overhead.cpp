// What does step() cost off the schedule, beyond the inner optimizer's own step?

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <outerloop/diloco.hpp>

#include <memory>

#include "allocations.hpp"
#include "report.hpp"

namespace outerloop::bench {
namespace {

constexpr int64_t steps = 1000;                        // per timed call: one step is too short for the clock
constexpr int64_t never = int64_t{1} << 60;            // sync_every
const std::vector<int64_t> group_counts{1, 2, 8, 32};  // one tiny parameter each, so that only the overhead is seen

torch::optim::SGD inner(int64_t groups) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (int64_t i = 0; i < groups; ++i) {
    Tensor param = at::ones({4}).requires_grad_(true);
    param.mutable_grad() = at::full({4}, 1e-3);
    made.emplace_back(std::vector<Tensor>{param});
  }
  return torch::optim::SGD(std::move(made), torch::optim::SGDOptions(1e-3).momentum(0.9));
}

std::string name(const char* what, int64_t groups) { return std::string(what) + "/" + std::to_string(groups); }

void add(const std::string& name, std::shared_ptr<torch::optim::Optimizer> optimizer) {
  contender(
      name, 0, 10, [] {},
      [optimizer] {
        for (int64_t i = 0; i < steps; ++i) optimizer->step();
      });
}

int64_t allocations_of_a_step(torch::optim::Optimizer& optimizer) {
  optimizer.step();  // the first makes the inner state
  allocations.reset();
  optimizer.step();
  return allocations.count;
}

struct Pair {
  std::shared_ptr<torch::optim::Optimizer> bare, wrapped;
};
std::map<int64_t, Pair> make_pairs() {
  std::map<int64_t, Pair> pairs;
  for (const int64_t groups : group_counts) {
    pairs[groups] = {
        std::make_shared<torch::optim::SGD>(inner(groups)),
        std::make_shared<DiLoCoOptimizer>(inner(groups), connect_alone(), DiLoCoOptions{.sync_every = never})};
  }
  return pairs;
}

void summary(const Medians& seconds, const std::map<int64_t, Pair>& pairs) {
  std::printf("step() off the schedule; target: at most 2 us + 1 us per group beyond the inner step\n");
  std::printf("%-8s %10s %12s %10s %10s | %s\n", "groups", "inner, us", "step(), us", "more, us", "allowed",
              "allocations: inner, step()");
  for (const auto& [groups, pair] : pairs) {
    if (!seconds.contains(name("wrapped", groups)) || !seconds.contains(name("bare", groups))) continue;
    const double bare = seconds.at(name("bare", groups)) / steps * 1e6;
    const double wrapped = seconds.at(name("wrapped", groups)) / steps * 1e6;
    const double allowed = 2.0 + static_cast<double>(groups);
    std::printf("%-8lld %10.2f %12.2f %10.2f %10.1f %s | %lld, %lld\n", static_cast<long long>(groups), bare, wrapped,
                wrapped - bare, allowed, verdict(wrapped - bare <= allowed),
                static_cast<long long>(allocations_of_a_step(*pair.bare)),
                static_cast<long long>(allocations_of_a_step(*pair.wrapped)));
  }
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop::bench;
  const auto pairs = make_pairs();
  for (const auto& [groups, pair] : pairs) {
    add(name("bare", groups), pair.bare);
    add(name("wrapped", groups), pair.wrapped);
  }
  return run(argc, argv, [&](const Medians& seconds) { summary(seconds, pairs); });
}
