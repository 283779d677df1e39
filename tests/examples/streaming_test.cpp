#include <outerloop/communicator.hpp>

#include "train_gpt.hpp"

/// The example with rounds of fragments, under way while it trains.

namespace outerloop::testing {
namespace {

constexpr int64_t model_bytes = 4 * 120'064;

TEST(StreamingGpt, FragmentsTakeTurnsAndTheirReportsSayHow) {
  const TrainGpt gpt;
  const Ended ended = gpt.run({"--steps", "24", "--sync-every", "6", "--eval-every", "6", "--fragments", "3", "--delay",
                               "2", "--keep-local", "0.5"});
  int64_t bytes = 0;
  std::vector<int64_t> order;
  for (const auto& round : gpt.lines("round")) {
    order.push_back(round.at("fragment"));
    const int64_t sent = round.at("wire_bytes"), left = 24 - round.at("step").get<int64_t>();
    bytes += sent;
    EXPECT_NEAR(sent, model_bytes / 3, model_bytes / 30);
    EXPECT_EQ(round.at("staleness"), std::min<int64_t>(left, order.size() > 12 ? 0 : 2)) << round;
    EXPECT_GT(round.at("reduce_seconds"), 0);
  }
  // Fragments are applied after steps 2, 4, 6 and so on, the first not, as it would be sent before the first step;
  // three more rounds make the end.
  EXPECT_EQ(order, (std::vector<int64_t>{1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(gpt.result().at("replicas")[0].at("bytes_sent"), bytes);
  EXPECT_EQ(gpt.lines("evaluation").size(), 4u);
  for (const std::string column : {"staleness", "waited", "bytes per step"}) {
    EXPECT_NE(ended.out.find(column), std::string::npos) << ended.out;
  }
}

TEST(StreamingGpt, EagerReplicasEndAlikeAndAreWarnedOfALargeOuterLr) {
  const TrainGpt gpt;
  const std::vector<std::string> eager{"--steps", "20", "--sync-every", "4", "--delay", "4", "--eager"};
  EXPECT_EQ(gpt.run(eager).err.find("warning"), std::string::npos);
  std::vector<std::string> steep = eager;
  steep.insert(steep.end(), {"--outer-lr", "1.5"});
  const std::string told = gpt.run(steep).err;
  EXPECT_NE(told.find("warning: outer_lr 1.5 is above"), std::string::npos) << told;
  EXPECT_EQ(told.find("warning"), told.rfind("warning")) << "once";
}

TEST(StreamingGpt, EagerWithinAWindowIsRefused) {
  const TrainGpt gpt;
  const Ended ended = Program(gpt.command({"--sync-every", "4", "--delay", "6", "--eager"})).wait();
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("--eager"), std::string::npos) << ended.err;
}

}  // namespace
}  // namespace outerloop::testing
