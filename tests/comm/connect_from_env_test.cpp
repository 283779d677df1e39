#include <gtest/gtest.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <map>
#include <optional>

#include "comm/port.hpp"
#include "support/processes.hpp"

// connect_from_env, in processes of their own where the environment tells ranks apart.

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::ReservedPort;
using testing::says;
using Variables = std::map<std::string, std::string>;

/// Sets variables of this process, and all others of torchrun's to nothing, until it goes.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RESTART_COUNT"}) {
      const char* old = std::getenv(name);
      before_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
      const auto found = variables.find(name);
      set(name, found == variables.end() ? std::nullopt : std::optional(found->second));
    }
  }
  Environment(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value);
  }

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

Variables torchrun_variables(int rank, int size, uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

/// Spawns ranks as torchrun would, each of which runs the current test as a "peer".
void expect_peers_meet(int size, uint16_t port, const Variables& more = {}) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    Variables variables = torchrun_variables(rank, size, port);
    variables.insert(more.begin(), more.end());
    children.push_back(testing::spawn_role("peer", variables));
  }
  for (const pid_t child : children) EXPECT_EQ(testing::wait_for(child), 0);
}

/// What such a peer does: two groups at the same place.
void peer() {
  const auto first = connect_from_env(60s), second = connect_from_env(60s);
  for (const auto& comm : {second, first}) {
    EXPECT_EQ(std::to_string(comm->rank()), std::getenv("RANK"));
    EXPECT_EQ(std::to_string(comm->size()), std::getenv("WORLD_SIZE"));
    const Tensor flat = torch::full({3}, comm->rank() + 1.0f);
    comm->all_reduce_sum(flat).wait();
    EXPECT_TRUE(torch::equal(flat, torch::full({3}, comm->size() * (comm->size() + 1) / 2.0f)));
  }
}

TEST(ConnectFromEnv, MeetsAtRankZero) {
  if (testing::role() == "peer") return peer();
  expect_peers_meet(2, ReservedPort());
}

TEST(ConnectFromEnv, MeetsAtTheStoreOfTorchrunsAgentAlsoAfterARestart) {
  if (testing::role() == "peer") return peer();
  if (testing::role() == "first to come") {
    EXPECT_THROW(connect_from_env(500ms), CommError);
    return;
  }
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  Variables variables = torchrun_variables(0, 2, agent->getPort());
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  // The first start fails after one rank has left its keys in the store.
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  EXPECT_EQ(testing::wait_for(testing::spawn_role("first to come", variables)), 0);
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  expect_peers_meet(2, agent->getPort(), variables);
}

TEST(ConnectFromEnv, IsAloneWithoutVariables) {
  const Environment environment({});
  EXPECT_EQ(connect_from_env()->size(), 1);
  EXPECT_EQ(connect_from_env()->rank(), 0);
}

TEST(ConnectFromEnv, IsAloneInAWorldOfOne) {
  const Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(connect_from_env()->size(), 1);
}

std::string refusal(const Variables& variables) {
  const Environment environment(variables);
  try {
    connect_from_env(1s);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(ConnectFromEnv, NamesAVariableOfBadValue) {
  const Variables good{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const std::vector<std::pair<std::string, std::string>> bad{{"RANK", "x"},
                                                             {"RANK", ""},
                                                             {"RANK", "-1"},
                                                             {"RANK", "2"},
                                                             {"RANK", "1.5"},
                                                             {"WORLD_SIZE", "two"},
                                                             {"WORLD_SIZE", "0"},
                                                             {"WORLD_SIZE", "2 "},
                                                             {"MASTER_PORT", "0"},
                                                             {"MASTER_PORT", "65536"},
                                                             {"MASTER_PORT", "h"},
                                                             {"RANK", "1e0"},
                                                             {"MASTER_PORT", "+2950"},
                                                             {"WORLD_SIZE", "99999999999999999999"}};
  for (const auto& [name, value] : bad) {
    Variables variables = good;
    variables[name] = value;
    const std::string message = refusal(variables);
    EXPECT_TRUE(says(message, name));
    EXPECT_TRUE(says(message, "'" + value + "'"));
  }
}

TEST(ConnectFromEnv, NamesAVariableThatIsMissing) {
  const Variables good{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : good) {
    Variables variables = good;
    variables.erase(name);
    EXPECT_TRUE(says(refusal(variables), name));
    EXPECT_TRUE(says(refusal(variables), "not"));
  }
}

/// Nobody listens at MASTER_PORT: the message of the CommError that comes within the timeout.
std::string unreachable(int rank, const Variables& more) {
  const ReservedPort nobody_listens;
  Variables variables = torchrun_variables(rank, 2, nobody_listens);
  variables.insert(more.begin(), more.end());
  const Environment environment(variables);
  const auto begin = std::chrono::steady_clock::now();
  std::string message = "nothing was thrown";
  try {
    connect_from_env(500ms);
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  return message;
}

TEST(ConnectFromEnv, OfALateRankZeroIsACommErrorWithinTheTimeout) {
  EXPECT_TRUE(says(unreachable(1, {}), "rank 1 of 2 could not reach"));
}

TEST(ConnectFromEnv, OnRankZeroDoesNotHostTheStoreOfTorchrunsAgent) {
  EXPECT_TRUE(says(unreachable(0, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), "rank 0 of 2 could not reach"));
}

}  // namespace
}  // namespace outerloop
