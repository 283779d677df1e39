#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "round/replica.hpp"

// A peer that does not come: CommError within the timeout, and outer state as it was.

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::averaging;
using testing::Replica;
using testing::same_bits;

constexpr auto short_timeout = 2s;

/// body() throws CommError not much later than the timeout.
template <class Body>
void expect_comm_error(Body body) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(body(), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, short_timeout + 5s);
}

/// Rank 1 throws in its closure before round 2 and, if `leave`, closes its connections by dropping the group.
void closure_throws(bool leave) {
  auto group = testing::gloo_group(3, short_timeout);
  testing::run_ranks(group, [&](std::shared_ptr<Communicator> comm) {
    const int rank = comm->rank();
    Replica replica(comm, averaging({}, 2));
    comm.reset();
    for (int t = 0; t < 3; ++t) replica.step(1);
    const Tensor anchor = replica.anchor();
    if (rank == 1) {
      EXPECT_THROW(replica.optimizer.step([]() -> Tensor { throw std::domain_error("no data"); }), std::domain_error);
      if (leave) group[rank].reset();
      return;  // the replica goes, too
    }
    expect_comm_error([&] { replica.step(1); });
    EXPECT_TRUE(same_bits(replica.anchor(), anchor));
    EXPECT_EQ(replica.optimizer.rounds(), 1);
    EXPECT_EQ(replica.optimizer.local_steps(), 4);
    expect_comm_error([&] { replica.optimizer.sync(); });  // the group stays unusable
  });
}

TEST(Failure, OfAClosureOnOneRankIsACommErrorOnTheOthers) { closure_throws(false); }
TEST(Failure, OfAClosureOnOneRankThatLeavesIsACommErrorOnTheOthers) { closure_throws(true); }

TEST(Failure, OfAPeerThatHangsIsACommErrorWithinTheTimeout) {
  std::atomic<int> gave_up = 0;
  testing::run_ranks(testing::gloo_group(3, short_timeout), [&](std::shared_ptr<Communicator> comm) {
    Replica replica(comm, averaging({}, 2));
    replica.step(1);
    if (comm->rank() == 1) {
      for (int tries = 0; gave_up < 2 && tries < 1000; ++tries) std::this_thread::sleep_for(10ms);
    } else {
      expect_comm_error([&] { replica.step(1); });
      ++gave_up;
    }
  });
  EXPECT_EQ(gave_up, 2);
}

}  // namespace
}  // namespace outerloop
