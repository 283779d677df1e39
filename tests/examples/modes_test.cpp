#include <outerloop/communicator.hpp>

#include <cmath>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "train_gpt.hpp"

namespace outerloop::testing {

namespace {

constexpr int64_t gpt_bytes = 4 * 120'064;  // all parameters in float32

struct Case {
  const char* mode;
  int replicas;
  int64_t all_reduces;  ///< of the whole model: one per round or step
};

class Modes : public ::testing::TestWithParam<Case> {};

// 24 steps with a round every 6: four rounds.
TEST_P(Modes, TrainsCountsItsBytesExactlyAndEndsWithEqualReplicas) {
  const auto [mode, replicas, all_reduces] = GetParam();
  const TrainGpt gpt;
  const Ended ended = gpt.run({"--mode", mode, "--replicas", std::to_string(replicas), "--steps", "24", "--sync-every",
                               "6", "--eval-every", "6"});

  const auto evaluations = gpt.lines("evaluation");
  ASSERT_EQ(evaluations.size(), 4u);
  const double first = evaluations.front().at("validation_bits_per_byte"),
               last = gpt.result().at("validation_bits_per_byte");
  EXPECT_TRUE(std::isfinite(last));
  EXPECT_LT(last, first - 0.5);
  EXPECT_NE(ended.out.find(mode), std::string::npos) << ended.out;

  const int64_t counted = all_reduces * all_reduce_bytes(gpt_bytes, replicas);
  const auto results = gpt.result().at("replicas");
  ASSERT_EQ(results.size(), static_cast<size_t>(mode == std::string("solo") ? 1 : replicas));
  for (const auto& replica : results) {
    EXPECT_EQ(replica.at("bytes_sent"), counted);
    EXPECT_NEAR(replica.at("socket_bytes").get<double>(), static_cast<double>(counted),
                0.02 * static_cast<double>(counted));
    EXPECT_EQ(replica.at("fingerprint"), results.front().at("fingerprint"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Modes,
                         ::testing::Values(Case{"diloco", 2, 4}, Case{"diloco", 3, 4}, Case{"local-sgd", 2, 4},
                                           Case{"local-sgd", 3, 4}, Case{"ddp", 2, 24}, Case{"ddp", 3, 24},
                                           Case{"solo", 2, 0}),
                         [](const auto& info) {
                           std::string name = info.param.mode + std::to_string(info.param.replicas);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace

TEST(TrainGpt, DefaultRecipeSendsTheBytesOfSixtyRounds) {
  EXPECT_EQ(1200 / 20 * all_reduce_bytes(gpt_bytes, 2), 28'815'360);
  EXPECT_EQ(1200 * all_reduce_bytes(gpt_bytes, 2), 576'307'200);
  const TrainGpt gpt;
  gpt.run({"--steps", "20"});
  const auto run = gpt.lines("run").at(0);
  EXPECT_EQ(run.at("mode"), "diloco");
  EXPECT_EQ(run.at("replicas"), 2);
  EXPECT_EQ(4 * run.at("parameters").get<int64_t>(), gpt_bytes);
  EXPECT_EQ(run.at("sync_every"), 20);
  EXPECT_EQ(run.at("outer_lr"), 0.7);
  EXPECT_EQ(run.at("outer_momentum"), 0.6);
  EXPECT_EQ(gpt.lines("round").size(), 1u);
}

TEST(TrainGpt, LogsOneLinePerRound) {
  const TrainGpt gpt;
  gpt.run({"--steps", "6", "--sync-every", "2"});
  const auto rounds = gpt.lines("round");
  ASSERT_EQ(rounds.size(), 3u);
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_EQ(rounds[i].at("round"), i + 1);
    EXPECT_EQ(rounds[i].at("step"), 2 * (i + 1));
    EXPECT_EQ(rounds[i].at("committed"), true);
    EXPECT_EQ(rounds[i].at("bytes_sent"), (i + 1) * gpt_bytes);
    EXPECT_GT(rounds[i].at("mean_delta_norm"), 0);
  }
}

TEST(TrainGpt, MeetsOnceMoreWhenTheStepsEndBetweenRounds) {
  const TrainGpt gpt;
  gpt.run({"--steps", "5", "--sync-every", "2"});
  const auto rounds = gpt.lines("round");
  ASSERT_EQ(rounds.size(), 3u);
  EXPECT_EQ(rounds.back().at("step"), 5);
  const auto replicas = gpt.result().at("replicas");
  EXPECT_EQ(replicas.at(0).at("fingerprint"), replicas.at(1).at("fingerprint"));
}

// Before the first round, rank 0 of any mode has taken the steps that solo takes.
TEST(TrainGpt, SoloSeesTheBatchesOfRankZero) {
  const TrainGpt solo, local_sgd;
  solo.run({"--mode", "solo", "--steps", "6"});
  local_sgd.run({"--mode", "local-sgd", "--steps", "6", "--sync-every", "6"});
  const auto loss = [](const TrainGpt& gpt) { return gpt.lines("evaluation").at(0).at("train_bits_per_byte"); };
  EXPECT_EQ(loss(solo), loss(local_sgd));
}

TEST(TrainGpt, RepeatsARunBitForBit) {
  const TrainGpt first, second;
  for (const auto* gpt : {&first, &second}) gpt->run({"--steps", "4", "--sync-every", "2"});
  const auto fingerprint = [](const TrainGpt& gpt) { return gpt.result().at("replicas").at(0).at("fingerprint"); };
  EXPECT_EQ(fingerprint(first), fingerprint(second));
}

TEST(TrainGpt, StartsElsewhereWithAnotherSeed) {
  const TrainGpt zero, one;
  zero.run({"--mode", "solo", "--steps", "1", "--seed", "0"});
  one.run({"--mode", "solo", "--steps", "1", "--seed", "1"});
  EXPECT_NE(zero.result().at("replicas"), one.result().at("replicas"));
}

TEST(TrainGpt, PrintsTextOfTheLengthAskedFor) {
  const TrainGpt gpt;
  const std::string out = gpt.run({"--mode", "solo", "--steps", "1", "--sample", "100"}).out;
  const std::string heading = "Text from the trained model:\n";
  const auto at = out.find(heading);
  ASSERT_NE(at, std::string::npos) << out;
  EXPECT_EQ(out.size() - at - heading.size(), 64u + 100u + 1u);  // the prompt, the text, the end of the line
}

TEST(TrainGpt, RunsUnderTorchrunWithoutStartingReplicas) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);

  const TrainGpt gpt;
  const auto worker = [&](int rank) {
    // --replicas is torchrun's affair.
    return std::make_unique<Program>(
        gpt.command({"--steps", "4", "--sync-every", "2", "--replicas", "7"}),
        std::vector<std::string>{"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=" + std::to_string(agent->getPort()),
                                 "TORCHELASTIC_USE_AGENT_STORE=True"});
  };
  const auto zero = worker(0), one = worker(1);
  ASSERT_TRUE(eventually([&] { return !contents(gpt.log()).empty(); }));
  EXPECT_TRUE(children_of(zero->pid()).empty());
  for (auto* program : {zero.get(), one.get()}) {
    const Ended ended = program->wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  EXPECT_EQ(gpt.result().at("replicas").size(), 2u);
}

}  // namespace outerloop::testing
