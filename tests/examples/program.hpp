#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_folder.hpp"

namespace outerloop::testing {

inline std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// False if it did not come true in time.
inline bool eventually(const std::function<bool()>& is_true, std::chrono::seconds within = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + within;
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

struct Ended {
  int exit_code = -1;  ///< 128 + signal if a signal ended it
  std::string out, err;
};

/// A program running in a process group of its own, as a shell would start it. Killed, group and all, with this object.
class Program {
 public:
  explicit Program(std::vector<std::string> command, std::vector<std::string> more_environment = {}) {
    for (char** entry = environ; *entry; ++entry) more_environment.emplace_back(*entry);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, (folder_ / "out").c_str(), O_CREAT | O_WRONLY, 0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, (folder_ / "err").c_str(), O_CREAT | O_WRONLY, 0600);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int error = posix_spawn(&pid_, command.front().c_str(), &files, &attributes, pointers(command).data(),
                                  pointers(more_environment).data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) throw std::runtime_error("cannot start " + command.front());
  }
  Program(const Program&) = delete;
  ~Program() {
    if (!reaped_) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  std::string err() const { return contents(folder_ / "err"); }

  /// Fails the test if the program has not ended within that time.
  Ended wait(std::chrono::seconds within = std::chrono::seconds(60)) {
    int status = 0;
    const bool ended = eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, within);
    EXPECT_TRUE(ended) << "still running after " << within.count() << " s: " << err();
    if (!ended) return {};
    reaped_ = true;
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .out = contents(folder_ / "out"),
            .err = err()};
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> all;
    for (auto& string : strings) all.push_back(string.data());
    all.push_back(nullptr);
    return all;
  }

  TempFolder folder_;
  pid_t pid_ = 0;
  bool reaped_ = false;
};

/// Whether the process runs; one that ended and waits to be reaped does not.
inline bool alive(pid_t pid) {
  const std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
  return !stat.empty() && stat[stat.rfind(')') + 2] != 'Z';
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = contents(entry.path() / "stat");
    if (stat.empty()) continue;
    std::istringstream rest(stat.substr(stat.rfind(')') + 2));
    char state = 0;
    pid_t of = 0;
    rest >> state >> of;
    if (of == parent) children.push_back(std::stoi(name));
  }
  return children;
}

/// Random words from a small vocabulary: text enough to learn from in a few steps. The same for the same number.
inline std::string words(size_t bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) {
    static constexpr const char* vocabulary[] = {"and ",  "the ",    "light ", "was ",
                                                 "good ", "waters ", "upon ",  "day.\n"};
    text += vocabulary[random() % std::size(vocabulary)];
  }
  text.resize(bytes);
  return text;
}

inline void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace outerloop::testing
