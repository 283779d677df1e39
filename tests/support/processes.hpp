#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

extern char** environ;

namespace outerloop::testing {

/// Tests in real processes: spawn_role() runs the current test again in a child of this process, where role() says as
/// what. A test begins with `if (role() == "peer") return peer();`. Failed expectations of a child end in its exit
/// code.
inline std::string role() {
  const char* role = std::getenv("OUTERLOOP_TEST_ROLE");
  if (!role) return {};
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans
  return role;
}

inline pid_t spawn_role(const std::string& role, std::map<std::string, std::string> variables = {}) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  variables["OUTERLOOP_TEST_ROLE"] = role;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!variables.count(name)) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<std::string> arguments{"/proc/self/exe",
                                     std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (auto& string : strings) result.push_back(string.data());
    result.push_back(nullptr);
    return result;
  };
  pid_t child = -1;
  const int error =
      posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, pointers(arguments).data(), pointers(environment).data());
  EXPECT_EQ(error, 0) << std::strerror(error);
  return child;
}

/// The child's exit code; minus the signal that ended it.
inline int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child) << std::strerror(errno);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace outerloop::testing
