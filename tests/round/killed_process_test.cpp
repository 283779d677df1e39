#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

#include "comm/gloo.hpp"
#include "round/replica.hpp"
#include "support/faults.hpp"
#include "support/processes.hpp"

// Three processes under a store, as torchrun's agent would hold it; rank 2 is killed by SIGKILL in the middle of a
// round.

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::gradient;
using testing::Replica;
using testing::same_bits;

constexpr auto peers_timeout = 2s, long_enough = 60s;
constexpr int64_t elements = 4'000'000;

c10::intrusive_ptr<c10d::Store> agent_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

/// Dies in its reduction, once that is under way or before it began.
class Doomed final : public Communicator {
 public:
  Doomed(std::shared_ptr<Communicator> group, bool under_way, const bool& armed)
      : group_(std::move(group)), under_way_(under_way), armed_(armed) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  Pending all_reduce_sum(Tensor flat) override {
    if (!armed_) return group_->all_reduce_sum(std::move(flat));
    Pending pending;
    if (under_way_) {
      pending = group_->all_reduce_sum(std::move(flat));
      std::this_thread::sleep_for(100ms);  // rank 0 is in it as well by now, rank 1 waits for this death
    }
    raise(SIGKILL);
    return pending;
  }
  Pending all_gather(Tensor rows, Tensor flat) override { return group_->all_gather(std::move(rows), std::move(flat)); }
  Pending all_to_all(Tensor out, Tensor in) override { return group_->all_to_all(std::move(out), std::move(in)); }
  Pending broadcast(Tensor flat, int root) override { return group_->broadcast(std::move(flat), root); }

 private:
  std::shared_ptr<Communicator> group_;
  bool under_way_;
  const bool& armed_;
};

/// The anchor after the rounds of these two replicas, had they trained with a third for round 1 only.
Tensor expected_anchor() {
  double anchor = 0, velocity = 0;
  const auto round = [&](double mean_delta) {
    velocity = 0.5 * velocity + mean_delta;
    anchor -= 0.5 * (mean_delta + 0.5 * velocity);
  };
  const auto delta = [](int rank, int step) { return gradient(rank, step) + gradient(rank, step + 1); };
  round((delta(0, 0) + delta(1, 0) + delta(2, 0)) / 3);
  round((delta(0, 2) + delta(1, 2)) / 2);
  return torch::full({elements}, anchor);
}

void peer(bool under_way) {
  const auto store = agent_store();
  store->set(std::string("here/") + std::getenv("RANK"), std::vector<uint8_t>{1});
  store->wait({"here/0", "here/1", "here/2"}, long_enough);  // starting a process may take longer than the timeout
  const auto comm = connect_from_env(peers_timeout);
  const int rank = comm->rank();
  bool armed = false;
  const auto wait_for_death = [&](const testing::Tapped::Call& call) {
    if (armed && call.name == "all_reduce_sum") store->wait({"killed"}, long_enough);
  };
  std::shared_ptr<Communicator> mine = comm;
  if (rank == 1) mine = std::make_shared<testing::Tapped>(comm, wait_for_death);
  if (rank == 2) mine = std::make_shared<Doomed>(comm, under_way, armed);
  Replica replica(mine, testing::with_momentum(), torch::zeros({elements}));
  for (int t = 0; t < 3; ++t) replica.step(gradient(rank, t));
  const Tensor anchor = replica.anchor();
  armed = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(replica.step(gradient(rank, 3)), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, peers_timeout + 5s);
  EXPECT_TRUE(same_bits(replica.anchor(), anchor));
  EXPECT_EQ(replica.optimizer.rounds(), 1);

  // The survivors go on among themselves, and their velocity is what it was.
  const auto survivors = c10::make_intrusive<c10d::PrefixStore>("survivors", store);
  replica.optimizer.reconnect(comm::gloo_over(survivors, {.rank = rank, .size = 2, .timeout = long_enough}));
  replica.optimizer.sync();
  EXPECT_EQ(replica.optimizer.rounds(), 2);
  EXPECT_TRUE(torch::equal(replica.anchor(), expected_anchor()));
}

void kill_rank_two(bool under_way) {
  if (testing::role() == "peer") return peer(under_way);
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(testing::spawn_role("peer", {{"RANK", std::to_string(rank)},
                                                    {"WORLD_SIZE", "3"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", std::to_string(store->getPort())},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  }
  EXPECT_EQ(testing::wait_for(children[2]), -SIGKILL);
  store->set("killed", std::vector<uint8_t>{1});
  EXPECT_EQ(testing::wait_for(children[0]), 0);
  EXPECT_EQ(testing::wait_for(children[1]), 0);
}

TEST(KilledProcess, BetweenHeadersAndPayloadLeavesTheSurvivorsOuterState) { kill_rank_two(false); }
TEST(KilledProcess, InTheMiddleOfThePayloadLeavesTheSurvivorsOuterState) { kill_rank_two(true); }

}  // namespace
}  // namespace outerloop
