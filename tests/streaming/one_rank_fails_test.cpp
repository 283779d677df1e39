#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include <atomic>
#include <new>

#include "round/replica.hpp"
#include "support/limited_memory.hpp"

/// What fails on one rank between a round's send and its apply: the others do not wait, and no fragment is half done.

namespace outerloop::testing {
namespace {

using namespace std::chrono_literals;

class NoMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { LimitedMemory::install(); }

  /// Both ranks step by 1; in step `at`, rank 1 gets no vector of the model's size. Returns what they saw of rounds.
  static std::vector<Replica::Outcomes> train(const Streaming& streaming, int at, int steps) {
    return run_ranks(gloo_group(2, 60s), [&](std::shared_ptr<Communicator> comm) {
      constexpr int64_t length = 1000;
      Replica replica(comm, {.sync_every = 2, .outer_lr = 0.25, .outer_momentum = 0, .streaming = streaming},
                      torch::zeros({length}));
      for (int step = 1; step <= steps; ++step) {
        replica.param.mutable_grad() = torch::ones_like(replica.param).detach();
        const bool fails = comm->rank() == 1 && step == at;
        too_much = fails ? 4 * length : SIZE_MAX;
        try {
          replica.optimizer.step();
        } catch (const std::bad_alloc&) {
          thrown_in = step;
        }
        too_much = SIZE_MAX;
      }
      replica.optimizer.drain();
      return replica.outcomes();
    });
  }
  static inline std::atomic<int> thrown_in = 0;
};

/// One round, the `aborted`th, aborts on both ranks.
void expect_only_this_aborts(const std::vector<Replica::Outcomes>& all, size_t aborted) {
  // The rank that throws has no report of that round.
  ASSERT_EQ(all[0].reports.size(), all[1].reports.size() + 1);
  for (size_t i = 0; i < all[0].reports.size(); ++i) {
    const bool commits = all[0].reports[i].outcome == Outcome::committed;
    EXPECT_EQ(commits, i != aborted) << "round " << i << ": " << all[0].reports[i].reason;
  }
  EXPECT_TRUE(same_bits(all[0].anchor, all[1].anchor));
}

TEST_F(NoMemory, ForTheSecondRoundUnderWayAbortsItOnAllRanks) {
  const auto all = train({.delay = 4}, 4, 10);  // sent after steps 2, 4, ...; applied after 6, 8, ...
  EXPECT_EQ(thrown_in, 8);
  expect_only_this_aborts(all, 1);
}

TEST_F(NoMemory, ForAnEagerShareAbortsItsRoundOnAllRanks) {
  const auto all = train({.delay = 4, .eager = true}, 2, 12);
  EXPECT_EQ(thrown_in, 6);
  expect_only_this_aborts(all, 0);
}

TEST(ConvertedUnderWay, ParameterLeavesItsFragmentAsItWas) {
  run_ranks(gloo_group(2, 60s), [](std::shared_ptr<Communicator> comm) {
    const Tensor single = parameter(torch::zeros({3})), twice = parameter(torch::zeros({3}, at::kDouble));
    DiLoCoOptimizer optimizer(torch::optim::SGD({single, twice}, 1.0), comm,
                              {.sync_every = 2, .outer_lr = 1, .outer_momentum = 0, .streaming = {.delay = 1}});
    for (const Tensor& param : {single, twice}) param.mutable_grad() = torch::ones_like(param).detach();
    optimizer.step();  // the round is sent
    twice.mutable_grad() = Tensor();
    const_cast<Tensor&>(twice).set_data(twice.detach().to(at::kFloat));
    EXPECT_TRUE(says(message_of<c10::Error>([&] { optimizer.step(); }), "was Double when its optimizer was made"));
    EXPECT_EQ(optimizer.rounds(), 0);
    for (const Tensor& anchor : optimizer.anchors()) EXPECT_TRUE(torch::equal(anchor, torch::zeros_like(anchor)));
    EXPECT_TRUE(torch::equal(single.detach(), torch::full({3}, -2.0)));
  });
}

}  // namespace
}  // namespace outerloop::testing
