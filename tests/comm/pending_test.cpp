#include <gtest/gtest.h>

#include <outerloop/communicator.hpp>
#include <outerloop/error.hpp>

#include <type_traits>

#include "support/ranks.hpp"

namespace outerloop {
namespace {

static_assert(!std::is_copy_constructible_v<Pending> && !std::is_copy_assignable_v<Pending>);
static_assert(std::is_nothrow_move_constructible_v<Pending> && std::is_nothrow_move_assignable_v<Pending>);
static_assert(std::is_nothrow_destructible_v<Pending>);

TEST(Pending, IsCompleteByDefault) {
  Pending none;
  none.wait();
  none.wait();
}

TEST(Pending, WaitsOnce) {
  int waits = 0;
  {
    Pending pending([&] { ++waits; });
    EXPECT_EQ(waits, 0);
    pending.wait();
    pending.wait();
    EXPECT_EQ(waits, 1);
  }
  EXPECT_EQ(waits, 1);
}

TEST(Pending, ThrowsOnce) {
  Pending pending([] { throw CommError("gone"); });
  EXPECT_THROW(pending.wait(), CommError);
  EXPECT_NO_THROW(pending.wait());
}

TEST(Pending, WaitsWhenDestroyedAndSwallowsTheError) {
  int waits = 0;
  EXPECT_NO_THROW({
    const Pending pending([&] {
      ++waits;
      throw CommError("gone");
    });
  });
  EXPECT_EQ(waits, 1);
}

TEST(Pending, HandsItsWaitOnWhenMoved) {
  int waits = 0;
  Pending first([&] { ++waits; });
  Pending second(std::move(first));
  first.wait();  // NOLINT(bugprone-use-after-move): it is empty now
  EXPECT_EQ(waits, 0);
  second.wait();
  EXPECT_EQ(waits, 1);
}

TEST(Pending, WaitsForWhatItHeldWhenAssignedTo) {
  std::string waits;
  Pending target([&] { waits += "old "; }), source([&] { waits += "new"; });
  target = std::move(source);
  EXPECT_EQ(waits, "old ");
  target.wait();
  EXPECT_EQ(waits, "old new");
  auto& self = target;
  target = std::move(self);
  EXPECT_EQ(waits, "old new");
}

TEST(Pending, OutlivesCommunicatorAndTensorHandle) {
  auto group = testing::gloo_group(2);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    const Tensor flat = torch::full({100'000}, rank + 1.0f);
    Pending pending = comm->all_reduce_sum(flat.view(-1));
    comm.reset();
    group[rank].reset();
    pending.wait();
    EXPECT_TRUE(torch::equal(flat, torch::full({100'000}, 3.0f)));
  });
}

TEST(Pending, CompletesTheCollectiveWhenDropped) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const Tensor flat = torch::ones({100'000});
    { const Pending dropped = comm->all_reduce_sum(flat); }
    EXPECT_TRUE(torch::equal(flat, torch::full({100'000}, 2.0f)));
  });
}

}  // namespace
}  // namespace outerloop
