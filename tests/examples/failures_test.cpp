#include <algorithm>

#include "train_gpt.hpp"

namespace outerloop::testing {

using std::chrono::seconds;

/// Three replicas, far from done, that have met for a round.
class Failures : public ::testing::Test {
 protected:
  explicit Failures(std::vector<std::string> more_options = {}) {
    std::vector<std::string> options{"--steps", "1000000", "--sync-every", "1", "--replicas", "3"};
    options.insert(options.end(), more_options.begin(), more_options.end());
    program_ = std::make_unique<Program>(gpt_.command(options));
  }
  void SetUp() override {
    ASSERT_TRUE(eventually([this] { return contents(gpt_.log()).find("\"round\"") != std::string::npos; }))
        << program_->err();
    replicas_ = children_of(program_->pid());
    ASSERT_EQ(replicas_.size(), 3u);
  }
  pid_t replica(int rank) const {
    const std::string mark = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
    for (const pid_t pid : replicas_) {
      if (('\0' + contents("/proc/" + std::to_string(pid) + "/environ")).find(mark) != std::string::npos) return pid;
    }
    throw std::runtime_error("no replica of rank " + std::to_string(rank));
  }
  /// Every replica is gone, and standard error holds this one line about it.
  void expect_the_end(int exit_code, const std::string& line) {
    const Ended ended = program_->wait(seconds(30));
    EXPECT_EQ(ended.exit_code, exit_code);
    EXPECT_NE(ended.err.find(line + "\n"), std::string::npos) << ended.err;
    size_t complaints = 0;
    for (size_t at = 0; (at = ended.err.find("train_gpt: ", at)) != std::string::npos; ++at) ++complaints;
    EXPECT_EQ(complaints, 1u) << ended.err;
    expect_no_replica();
  }
  void expect_no_replica() const {
    for (const pid_t pid : replicas_) EXPECT_TRUE(eventually([pid] { return !alive(pid); }, seconds(5))) << pid;
  }

  TrainGpt gpt_;
  std::unique_ptr<Program> program_;
  std::vector<pid_t> replicas_;
};

class HungReplica : public Failures {
 protected:
  // Also how long the replicas may take to find each other, so not as short as could be.
  HungReplica() : Failures({"--timeout", "3"}) {}
};

TEST_F(Failures, KilledReplicaStopsTheOthers) {
  kill(replica(1), SIGKILL);
  expect_the_end(1, "train_gpt: replica 1 was killed by signal 9 (Killed); the others were stopped");
}

TEST_F(Failures, KilledRankZeroStopsTheOthers) {
  kill(replica(0), SIGKILL);
  expect_the_end(1, "train_gpt: replica 0 was killed by signal 9 (Killed); the others were stopped");
}

TEST_F(Failures, CtrlCStopsAllReplicas) {
  kill(-program_->pid(), SIGINT);  // the whole process group, as a terminal does
  expect_the_end(128 + SIGINT, "train_gpt: stopped by signal 2 (Interrupt), all replicas too");
}

TEST_F(Failures, TerminationOfTheParentStopsAllReplicas) {
  kill(program_->pid(), SIGTERM);
  expect_the_end(128 + SIGTERM, "train_gpt: stopped by signal 15 (Terminated), all replicas too");
}

TEST_F(Failures, NoReplicaOutlivesAKilledParent) {
  kill(program_->pid(), SIGKILL);
  EXPECT_EQ(program_->wait().exit_code, 128 + SIGKILL);
  expect_no_replica();
}

TEST_F(HungReplica, IsGivenUpAfterTheTimeout) {
  kill(replica(2), SIGSTOP);
  expect_the_end(1, "train_gpt: replica 2 did not answer, and was killed; the others were stopped");
}

}  // namespace outerloop::testing
