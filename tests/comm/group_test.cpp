#include <gtest/gtest.h>

#include <outerloop/outerloop.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "comm/gloo.hpp"
#include "comm/pair.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/tensors.hpp"

// How groups are made, how they fail and in which order they may go.

namespace outerloop {
namespace {

using namespace std::chrono_literals;

using testing::expect_sums;
using testing::on_two_threads;

std::shared_ptr<Communicator> pair_over(c10::intrusive_ptr<c10d::Store> store, int rank) {
  return comm::gloo_over(std::move(store), {.rank = rank, .size = 2, .timeout = 60s});
}

TEST(Group, MeetsOverAFileStore) {
  const testing::TempFolder folder;
  on_two_threads(
      [&](int rank) { expect_sums(pair_over(c10::make_intrusive<c10d::FileStore>(folder / "store", 2), rank)); });
}

TEST(Group, MayBeOneOfSeveralOverTheSameStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_two_threads([&](int rank) {
    const auto first = pair_over(store, rank), second = pair_over(store, rank);
    expect_sums(second);
    expect_sums(first);
    expect_sums(second);
  });
}

TEST(Group, ThatIsMadeAnewAfterTheOldOneWentWorks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_two_threads([&](int rank) {
    for (int i = 0; i < 3; ++i) expect_sums(pair_over(store, rank));
  });
}

TEST(Group, ThatNobodyElseJoinsIsACommErrorNamingRankAndTime) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    comm::gloo_over(c10::make_intrusive<c10d::HashStore>(), {.rank = 1, .size = 3, .timeout = 500ms});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("rank 1 of 3"), std::string::npos) << message;
    EXPECT_NE(message.find("500 ms"), std::string::npos) << message;
    EXPECT_NE(message.find("GLOO_SOCKET_IFNAME"), std::string::npos) << message;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Group, IsMadeAtASecondAttemptWhenTheFirstCameToNothing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto alone = [&](int rank) { comm::gloo_over(store, {.rank = rank, .size = 2, .timeout = 200ms}); };
  for (const int early : {1, 0, 1, 1}) {
    EXPECT_THROW(alone(early), CommError);
    on_two_threads([&](int rank) { expect_sums(pair_over(store, rank)); });
  }
}

/// The threads of this process in which SIGPIPE would be delivered.
std::set<std::string> threads_that_a_closed_connection_kills() {
  std::set<std::string> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      const bool blocked = std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1;
      if (!blocked) threads.insert(task.path().filename());
    }
  }
  return threads;
}

TEST(Group, HasNoThreadThatAClosedConnectionKills) {
  const auto before = threads_that_a_closed_connection_kills();
  const auto group = testing::gloo_group(2);
  EXPECT_EQ(threads_that_a_closed_connection_kills(), before);
}

TEST(Group, StaysUnusableAfterAFailure) {
  auto group = testing::gloo_group(3, 1s);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) {
      comm.reset();
      group[1].reset();  // the last owner: closes the connections
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    const Tensor flat = torch::ones({5}), rows = torch::ones({3, 5});
    EXPECT_THROW(comm->all_reduce_sum(flat).wait(), CommError);
    try {
      comm->all_reduce_sum(flat).wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("unusable since an earlier failure"), std::string::npos) << error.what();
    }
    EXPECT_THROW(comm->all_gather(rows, flat).wait(), CommError);
    EXPECT_THROW(comm->broadcast(flat, 0).wait(), CommError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 6s);
  });
}

TEST(Group, TellsEachRankOfAFailureNotItsNeighboursAlone) {
  auto group = testing::gloo_group(6);  // in a ring, rank 5 has two neighbours of five
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 5) {
      comm.reset();
      group[5].reset();
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(comm->all_reduce_sum(torch::ones({600})).wait(), CommError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  });
}

TEST(Group, WhosePeerDoesNotAnswerTimesOut) {
  const auto group = testing::gloo_group(2, 500ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(group[0]->all_reduce_sum(torch::ones({5})).wait(), CommError);
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(waited, 400ms);
  EXPECT_LT(waited, 5s);
}

TEST(Group, MayGoBeforeItsOptimizer) {
  auto group = testing::gloo_group(2);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    Tensor p = testing::parameter(torch::ones({4}));
    LocalSGDOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, {.sync_every = 1});
    group[comm->rank()].reset();
    const float gradient = comm->rank() == 0 ? 1 : 2;
    comm.reset();
    p.mutable_grad() = torch::full({4}, gradient);
    optimizer.step();
    EXPECT_TRUE(torch::equal(p.detach(), torch::full({4}, 1 - 1.5f)));
  });
}

TEST(Group, MayOutliveItsOptimizer) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    Tensor p = testing::parameter(torch::ones({4}));
    for (int i = 0; i < 2; ++i) {
      LocalSGDOptimizer optimizer(torch::optim::SGD({p}, 1.0), comm, {.sync_every = 1});
      optimizer.step();
    }
    expect_sums(comm);
  });
}

TEST(Group, MayOutliveThePeers) {
  const auto group = testing::gloo_group(2);
  std::shared_ptr<Communicator> kept = group[0];
  EXPECT_EQ(kept->size(), 2);  // rank 1 goes first, when the vector does
}

}  // namespace
}  // namespace outerloop
