#include <algorithm>

#include "train_gpt.hpp"

namespace outerloop::testing {

namespace {

void expect_one_line_and_exit_2(const std::vector<std::string>& options, const std::vector<std::string>& mentions) {
  std::vector<std::string> command{OUTERLOOP_TRAIN_GPT};
  command.insert(command.end(), options.begin(), options.end());
  const Ended ended = Program(command).wait();
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_EQ(ended.err.find("train_gpt: "), 0u) << ended.err;
  for (const auto& word : mentions) EXPECT_NE(ended.err.find(word), std::string::npos) << word << " in " << ended.err;
}

}  // namespace

TEST(BadInput, DataThatIsMissing) {
  const TempFolder folder;
  expect_one_line_and_exit_2({"--data", folder / "none"}, {"--data", folder / "none", "no such file"});
}

TEST(BadInput, DataThatIsEmpty) {
  const TempFolder folder;
  write(folder / "empty", "");
  expect_one_line_and_exit_2({"--data", folder / "empty"}, {"--data", folder / "empty", "empty"});
}

TEST(BadInput, DataThatIsTooShort) {
  const TempFolder folder;
  write(folder / "context", words(64));
  expect_one_line_and_exit_2({"--data", folder / "context"}, {"--data", "64 bytes", "65536"});
  write(folder / "nearly", words(65'535));
  expect_one_line_and_exit_2({"--data", folder / "nearly"}, {"--data", "65535 bytes", "65536"});
}

TEST(BadInput, DataThatIsTooShortForSoManyReplicas) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  expect_one_line_and_exit_2({"--data", folder / "text", "--replicas", "9"}, {"--data", "9 replicas", "73728"});
}

TEST(BadInput, DataThatIsAFolder) {
  const TempFolder folder;
  expect_one_line_and_exit_2({"--data", folder / ""}, {"--data", "not a regular file"});
}

TEST(BadInput, StreamingOfAModeThatDoesNot) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  for (const auto& option : std::vector<std::vector<std::string>>{
           {"--fragments", "2"}, {"--delay", "1"}, {"--keep-local", "0.5"}, {"--eager", "--delay", "20"}}) {
    std::vector<std::string> options{"--data", folder / "text", "--mode", "local-sgd"};
    options.insert(options.end(), option.begin(), option.end());
    expect_one_line_and_exit_2(options, {"--mode diloco", "local-sgd"});
  }
}

TEST(BadInput, NoData) { expect_one_line_and_exit_2({}, {"--data"}); }

struct Wrong {
  const char *option, *value, *mention;
};
class OutOfRange : public ::testing::TestWithParam<Wrong> {};
TEST_P(OutOfRange, IsRefusedBeforeReplicasStart) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  const auto [option, value, mention] = GetParam();
  expect_one_line_and_exit_2({"--data", folder / "text", option, value}, {mention, value});
}
INSTANTIATE_TEST_SUITE_P(Options, OutOfRange,
                         ::testing::Values(Wrong{"--mode", "hogwild", "--mode"}, Wrong{"--device", "tpu", "--device"},
                                           Wrong{"--steps", "0", "--steps"}, Wrong{"--sync-every", "0", "--sync-every"},
                                           Wrong{"--replicas", "0", "--replicas"}, Wrong{"--batch", "many", "--batch"},
                                           Wrong{"--outer-momentum", "1", "momentum"},
                                           Wrong{"--fragments", "0", "--fragments"},
                                           Wrong{"--fragments", "21", "--sync-every 20"},
                                           Wrong{"--delay", "-1", "not in range 0 to 1000000000000"},
                                           Wrong{"--keep-local", "1.5", "--keep-local"},
                                           Wrong{"--outer-lr", "-0.5", "lr"}, Wrong{"--outer-lr", "nan", "lr"},
                                           Wrong{"--lanes", "65", "--lanes"},
                                           Wrong{"--timeout", "9999999999", "--timeout"}));

TEST(BadInput, CudaInTheProgramWithoutItNamesTheOneWithIt) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  expect_one_line_and_exit_2({"--data", folder / "text", "--device", "cuda"}, {"--device cuda", "train_gpt_cuda"});
}

TEST(BadInput, WorldSizeThatIsNone) {
  const TrainGpt gpt;
  for (const std::string size : {"0", "", "-1", "99999999999", "2x"}) {
    const Ended ended = Program(gpt.command({}), {"RANK=0", "WORLD_SIZE=" + size}).wait();
    EXPECT_EQ(ended.exit_code, 2) << size;
    EXPECT_NE(ended.err.find("WORLD_SIZE must be an integer from 1 to 1024, got '" + size + "'"), std::string::npos)
        << ended.err;
  }
}

TEST(BadInput, LogThatIsTheData) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  expect_one_line_and_exit_2({"--data", folder / "text", "--log", folder / "text"}, {"--log", folder / "text"});
  EXPECT_EQ(contents(folder / "text"), words(65'536));
}

TEST(BadInput, LogThatCannotHoldWhatIsWritten) {
  const TempFolder folder;
  write(folder / "text", words(65'536));
  const Ended ended = Program({OUTERLOOP_TRAIN_GPT, "--data", folder / "text", "--log", "/dev/full"}).wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.err.find("--log /dev/full: cannot be written"), std::string::npos) << ended.err;
}

TEST(BadInput, NetworkInterfaceThatIsNoneIsNamed) {
  const TrainGpt gpt;
  const Ended ended = Program(gpt.command({}), {"GLOO_SOCKET_IFNAME=no-such-interface"}).wait();
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_NE(ended.err.find("GLOO_SOCKET_IFNAME"), std::string::npos) << ended.err;
}

TEST(BadInput, SoloUnderTorchrunWithTwoReplicas) {
  const TrainGpt gpt;
  const Ended ended = Program(gpt.command({"--mode", "solo"}), {"RANK=0", "WORLD_SIZE=2"}).wait();
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("WORLD_SIZE is 2"), std::string::npos) << ended.err;
}

}  // namespace outerloop::testing
