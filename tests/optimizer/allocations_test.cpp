#include <outerloop/outerloop.hpp>

#include <cstdlib>
#include <new>

#include "optimizer/models.hpp"
#include "support/faults.hpp"
#include "support/ranks.hpp"

/// Counts every operator new of this thread, those inside libtorch too; tensors' own memory comes from elsewhere.
namespace {
thread_local int64_t allocations = 0;
}
// Not inlined, as g++ would otherwise see free() meet a new that it does not know is malloc().
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace outerloop::testing {
namespace {

using torch::optim::OptimizerParamGroup;

/// Parameters in `groups` groups, two in each, with gradients.
std::vector<OptimizerParamGroup> make_groups(int groups) {
  std::vector<OptimizerParamGroup> result;
  for (int i = 0; i < groups; ++i) {
    std::vector<Tensor> params{leaf(eighths({3}, 0)), leaf(eighths({2}, 0))};
    for (const Tensor& param : params) param.mutable_grad() = torch::ones_like(param);
    result.emplace_back(std::move(params));
  }
  return result;
}

int64_t allocations_in(Optimizer& optimizer) {
  const int64_t before = allocations;
  optimizer.step();
  return allocations - before;
}

class Steady : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Groups, Steady, ::testing::Values(1, 3, 10));

TEST_P(Steady, StepOffTheScheduleAllocatesOnlyTheOptionsHandedOnPerGroup) {
  const auto defaults = torch::optim::AdamWOptions(0.01);
  torch::optim::AdamW bare(make_groups(GetParam()), defaults);
  DiLoCoOptimizer optimizer(torch::optim::AdamW(make_groups(GetParam()), defaults), connect_alone());
  for (int step = 0; step < 3; ++step) {  // the state is made in the first
    bare.step();
    optimizer.step();
  }
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(allocations_in(optimizer) - allocations_in(bare), GetParam());
  }
}

TEST_P(Steady, StepOffTheScheduleCommunicatesNothing) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto tapped = std::make_shared<Tapped>(comm);
    LocalSGDOptimizer optimizer(torch::optim::SGD(make_groups(GetParam()), torch::optim::SGDOptions(0.5)), tapped,
                                {.sync_every = 5});
    tapped->calls.clear();
    for (int step = 1; step <= 4; ++step) optimizer.step();
    EXPECT_TRUE(tapped->calls.empty());
    optimizer.step();
    EXPECT_FALSE(tapped->calls.empty());
  });
}

}  // namespace
}  // namespace outerloop::testing
