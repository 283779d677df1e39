#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/port.hpp"
#include "examples/program.hpp"

namespace outerloop::planner {
namespace {

using testing::Ended;
using testing::Program;
using testing::says;
using testing::TempFolder;

std::vector<std::string> command(const std::vector<std::string>& more) {
  std::vector<std::string> all{OUTERLOOP_BENCH_PLANNER, "--params", "1e9", "--step-ms", "100"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(PlannerProgram, PrintsTableAndRecommendationsAndKeepsTheCurves) {
  const TempFolder folder;
  const Ended ended = Program(command({"--json", folder / "plan.json", "--mbit", "10000", "--bits", "16"})).wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  // 16 Gbit in 1.6 s, beside 10 s of steps.
  EXPECT_TRUE(says(ended.out, "\n1e+04                    3.1            86.2            86.2")) << ended.out;
  EXPECT_TRUE(says(ended.out, "delay up to 0: sync_every 144, fragments 1, delay 0: 90.0 %")) << ended.out;
  const auto plan = nlohmann::json::parse(testing::contents(folder / "plan.json"));
  ASSERT_EQ(plan["curves"].size(), 4u);
  EXPECT_EQ(plan["curves"][1]["name"], "DiLoCo");
  EXPECT_EQ(plan["curves"][1]["mbit"].size(), 241u);
  EXPECT_NEAR(plan["curves"][1]["percent"][120].get<double>(), 100 * 10 / 11.6, 1e-9);
}

struct Mistake {
  std::vector<std::string> options;
  std::string message;
};
class PlannerMistake : public ::testing::TestWithParam<Mistake> {};
TEST_P(PlannerMistake, IsOneLineAndExitCodeTwo) {
  const Ended ended = Program(command(GetParam().options)).wait();
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_EQ(ended.err, "bench_planner: " + GetParam().message + "\n");
}
INSTANTIATE_TEST_SUITE_P(
    Options, PlannerMistake,
    ::testing::Values(Mistake{{"--step-ms", "0"}, "--step-ms: must be positive and finite, got 0"},
                      Mistake{{"--mbit", "nan"}, "--mbit: must be positive and finite, got nan"},
                      Mistake{{"--fragments", "101"}, "sync_every must be >= fragments, got 100 for 101 fragments"},
                      Mistake{{"--probe"},
                              "--probe: a group of one has no link; set RANK and WORLD_SIZE, as torchrun does"},
                      Mistake{{"--json", "no/such/folder"}, "--json no/such/folder: cannot be written"}));

TEST(PlannerProgram, ProbesAGroupAndOneProcessTells) {
  const testing::ReservedPort port;
  const auto start = [&](int rank) {
    return std::make_unique<Program>(
        command({"--probe", "--seconds", "0.2"}),
        std::vector<std::string>{"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=" + std::to_string(port)});
  };
  const auto first = start(0), second = start(1);
  const Ended told = first->wait(), silent = second->wait();
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_EQ(silent.exit_code, 0) << silent.err;
  EXPECT_TRUE(says(told.out, "24 layers, 2 replicas")) << told.out;
  EXPECT_TRUE(says(told.out, "recommended for 90 %")) << told.out;
  EXPECT_EQ(silent.out, "");
}

}  // namespace
}  // namespace outerloop::planner
