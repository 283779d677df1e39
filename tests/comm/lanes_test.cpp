#include <gtest/gtest.h>

#include <outerloop/outerloop.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/pair.hpp"
#include "comm/port.hpp"
#include "support/ranks.hpp"
#include "support/tensors.hpp"

// Groups of the same replicas beside a group.

namespace outerloop {
namespace {

using namespace std::chrono_literals;

TEST(Lanes, AreNoneUnlessAskedFor) {
  testing::run_ranks(testing::gloo_group(2, 60s, 0), [](auto comm) { EXPECT_TRUE(comm->lanes().empty()); });
  EXPECT_TRUE(connect_alone()->lanes().empty());
  EXPECT_TRUE(connect_gloo({.lanes = 3})->lanes().empty()) << "a group of one does not communicate";
}

TEST(Lanes, AreGroupsOfTheSameRanksOnTheSameDevice) {
  testing::run_ranks(testing::gloo_group(3, 60s, 2), [](std::shared_ptr<Communicator> comm) {
    ASSERT_EQ(comm->lanes().size(), 2);
    for (const auto& lane : comm->lanes()) {
      EXPECT_EQ(lane->rank(), comm->rank());
      EXPECT_EQ(lane->size(), 3);
      EXPECT_EQ(lane->device(), at::kCPU);
      const Tensor flat = torch::ones({5});
      lane->all_reduce_sum(flat).wait();
      EXPECT_TRUE(torch::equal(flat, torch::full({5}, 3.0)));
    }
  });
}

/// Rank 1 begins on the last lane, rank 0 on the first: in one group they would meet in the wrong collectives.
TEST(Lanes, DoNotWaitForEachOtherNorForTheGroup) {
  testing::run_ranks(testing::gloo_group(2, 60s, 3), [](std::shared_ptr<Communicator> comm) {
    std::vector<std::shared_ptr<Communicator>> all = comm->lanes();
    all.push_back(comm);
    if (comm->rank() == 1) std::reverse(all.begin(), all.end());
    std::vector<Tensor> flat;
    std::vector<Pending> sums;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto number = static_cast<double>(comm->rank() == 1 ? all.size() - 1 - i : i);
      flat.push_back(torch::full({4}, number));
      sums.push_back(all[i]->all_reduce_sum(flat.back()));
    }
    for (size_t i = 0; i < all.size(); ++i) {
      sums[i].wait();
      const auto number = static_cast<double>(comm->rank() == 1 ? all.size() - 1 - i : i);
      EXPECT_TRUE(torch::equal(flat[i], torch::full({4}, 2 * number)));
    }
  });
}

TEST(Lanes, FailTogetherWithTheirGroup) {
  auto group = testing::gloo_group(2, 2s, 2);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) {
      comm.reset();
      group[1].reset();
      return;
    }
    const auto lanes = comm->lanes();
    EXPECT_THROW(lanes[1]->all_reduce_sum(torch::ones({3})).wait(), CommError);
    for (const auto& other : {lanes[0], comm}) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THROW(other->all_reduce_sum(torch::ones({3})).wait(), CommError);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s) << "the failure is known";
    }
  });
}

/// The last rank, which was told what rank 0 was, hears as well.
TEST(Lanes, OfDifferentNumberAreNamedByAllRanks) {
  const testing::ReservedPort port;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&port, rank] {
      try {
        connect_gloo({.rank = rank, .size = 3, .port = port, .timeout = 60s, .lanes = rank == 1 ? 4 : 0});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const CommError& error) {
        EXPECT_NE(std::string(error.what()).find("rank 0 is in a group of 3, rank 1 in one of 3 with 4 lanes"),
                  std::string::npos)
            << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

}  // namespace
}  // namespace outerloop
