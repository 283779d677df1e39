#include "train_gpt.hpp"

#include <outerloop/codec.hpp>

#include "../../examples/wires.hpp"

namespace outerloop::testing {
namespace {

TEST(TrainGptWires, CountTheirBytesAsTheSocketsDo) {
  for (const std::string wire : {"bf16", "int8", "int4", "top-k"}) {
    const TrainGpt gpt;
    gpt.run({"--wire", wire, "--steps", "12", "--sync-every", "2", "--eval-every", "100", "--inner", "muon"});
    const auto rounds = gpt.lines("round");
    ASSERT_EQ(rounds.size(), 6u);
    const auto codec = wires.at(wire)();
    const auto sent = static_cast<double>(codec->wire_bytes(120'064));  // 2 (R - 1) / R wires, or R - 1
    EXPECT_NEAR(rounds[0].at("wire_bytes").get<double>(), sent, 0.01 * sent) << wire;
    const auto result = gpt.result();
    for (const auto& replica : result.at("replicas")) {
      const double counted = replica.at("bytes_sent"), sockets = replica.at("socket_bytes");
      EXPECT_EQ(counted, 6 * rounds[0].at("wire_bytes").get<double>());
      EXPECT_GE(sockets, counted);
      // Meeting, headers and evaluations: the same few KB whatever the wire.
      EXPECT_LE(sockets, 1.02 * counted + 16'000) << wire;
    }
  }
}

TEST(TrainGptWires, WithFeedbackEndElsewhereThanWithout) {
  const TrainGpt with, without;
  with.run({"--wire", "top-k", "--feedback", "0.95", "--steps", "12", "--sync-every", "3"});
  without.run({"--wire", "top-k", "--steps", "12", "--sync-every", "3"});
  EXPECT_NE(with.result().at("validation_bits_per_byte"), without.result().at("validation_bits_per_byte"));
  EXPECT_EQ(with.lines("run").at(0).at("feedback"), 0.95);
}

TEST(TrainGptWires, ThatCannotBeAreRefused) {
  const TrainGpt gpt;
  const auto refused = [&](const std::vector<std::string>& options, const std::string& words) {
    const Ended ended = Program(gpt.command(options)).wait();
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(words), std::string::npos) << ended.err;
  };
  refused({"--wire", "int3"}, "--wire");
  refused({"--mode", "ddp", "--wire", "int8"}, "--wire is of deltas");
  refused({"--mode", "solo", "--feedback", "0.9"}, "--feedback is of deltas");
  refused({"--feedback", "0.9"}, "--feedback wants a --wire that loses something");
  for (const std::string decay : {"0", "1.5", "-0.5", "nan", "much"}) {
    refused({"--wire", "int8", "--feedback", decay}, "--feedback: " + decay + " is not in (0, 1]");
  }
  refused({"--wire", "int8", "--feedback", "0.9", "--delay", "20"}, "--delay below --sync-every");
  refused({"--inner", "sgd"}, "--inner");
  refused({"--warm-up", "13", "--steps", "12"}, "--warm-up 13");
  refused({"--lr-decay", "step"}, "--lr-decay");
}

TEST(TrainGptInner, MuonTrainsInEveryMode) {
  for (const std::string mode : {"ddp", "diloco", "local-sgd", "solo"}) {
    const TrainGpt gpt;
    gpt.run({"--inner", "muon", "--mode", mode, "--steps", "24", "--sync-every", "6", "--eval-every", "6", "--lr-decay",
             "linear", "--weight-decay", "0.02"});
    const auto evaluations = gpt.lines("evaluation");
    const double first = evaluations.front().at("validation_bits_per_byte"),
                 last = gpt.result().at("validation_bits_per_byte");
    EXPECT_LT(last, first - 0.5) << mode;
  }
}

}  // namespace
}  // namespace outerloop::testing
