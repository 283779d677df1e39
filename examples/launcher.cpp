#include "launcher.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr const char* watched = "TRAIN_GPT_WATCHED";

struct Replica {
  int rank = 0;
  pid_t pid = 0;
  bool running = true;
  bool unresponsive = false;  ///< did not end when it was told to
  int status = 0;             ///< as waitpid gives it

  bool failed() const { return !running && status != 0; }
  /// How likely it is what brought the run down: 0 if it ended well, more if it was not merely stopped with the others.
  int blame() const {
    if (!failed()) return 0;
    const bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    const bool lost_contact = WIFEXITED(status) && WEXITSTATUS(status) == exit_lost_contact;
    return unresponsive ? 3 : stopped ? 1 : lost_contact ? 2 : 4;
  }
};
using Replicas = std::vector<Replica>;

std::vector<std::string> environment(int rank, int count, int port) {
  const std::vector<std::string> ours{
      "RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank),  "WORLD_SIZE=" + std::to_string(count),
      "MASTER_ADDR=127.0.0.1",        "MASTER_PORT=" + std::to_string(port), "TORCHELASTIC_USE_AGENT_STORE=True",
      std::string(watched) + "=1"};
  std::vector<std::string> all = ours;
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable = *entry;
    const std::string name = variable.substr(0, variable.find('=') + 1);
    if (std::none_of(ours.begin(), ours.end(), [&](const auto& mine) { return mine.starts_with(name); })) {
      all.push_back(variable);
    }
  }
  return all;
}

Replica start(int rank, int count, int port, char** argv, const sigset_t& signal_mask) {
  auto variables = environment(rank, count, port);
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(std::string("cannot start a replica: ") + std::strerror(errno));
  if (pid > 0) return {.rank = rank, .pid = pid};

  // Only system calls from here to exec: the parent has threads, whose locks nobody would ever release.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  signal(SIGINT, SIG_IGN);  // Ctrl-C goes to the whole group; the parent passes it on
  sigprocmask(SIG_SETMASK, &signal_mask, nullptr);
  execve("/proc/self/exe", argv, pointers.data());
  _exit(127);
}

void reap(Replicas& replicas) {
  for (auto& replica : replicas) {
    if (replica.running && waitpid(replica.pid, &replica.status, WNOHANG) == replica.pid) replica.running = false;
  }
}

bool any_running(const Replicas& replicas) {
  return std::any_of(replicas.begin(), replicas.end(), [](const Replica& replica) { return replica.running; });
}

void stop(Replicas& replicas, int signal) {
  for (auto& replica : replicas) {
    if (!replica.running) continue;
    replica.unresponsive = signal == SIGKILL;
    kill(replica.pid, signal);
  }
}

/// Until all have ended. Returns the signal that asked this process to end, or 0.
int watch(Replicas& replicas, const sigset_t& signals) {
  int asked = 0;
  bool stopping = false;
  while (reap(replicas), any_running(replicas)) {
    const bool failure = std::any_of(replicas.begin(), replicas.end(), [](const Replica& r) { return r.failed(); });
    if (!stopping && (asked || failure)) {
      stop(replicas, SIGTERM);
      stopping = true;
      continue;
    }
    const timespec grace{.tv_sec = 1, .tv_nsec = 0};
    const int signal = stopping ? sigtimedwait(&signals, nullptr, &grace) : sigwaitinfo(&signals, nullptr);
    if (signal == SIGINT || signal == SIGTERM) asked = signal;
    if (signal < 0 && errno == EAGAIN) stop(replicas, SIGKILL);
  }
  return asked;
}

std::string how_it_ended(const Replica& replica) {
  const std::string name = "replica " + std::to_string(replica.rank);
  if (replica.unresponsive) return name + " did not answer, and was killed";
  if (WIFSIGNALED(replica.status)) {
    const int signal = WTERMSIG(replica.status);
    return name + " was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  }
  if (WEXITSTATUS(replica.status) == exit_lost_contact) return name + " lost contact with the others";
  return name + " failed with exit code " + std::to_string(WEXITSTATUS(replica.status));
}

void say(const std::string& line) {
  // On a terminal the cursor may stand in the middle of a progress line.
  std::fprintf(stderr, "%strain_gpt: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", line.c_str());
}

}  // namespace

bool is_replica() { return std::getenv("RANK") != nullptr; }
bool is_watched() { return std::getenv(watched) != nullptr; }

int launch_replicas(int count, char** argv) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) sigaddset(&signals, signal);  // SIGPIPE: from the store
  // Blocked before the store starts its threads, which inherit this, so that watch() alone gets them.
  pthread_sigmask(SIG_BLOCK, &signals, &before);

  c10d::TCPStoreOptions options;
  options.port = 0;  // any free one
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);

  Replicas replicas;
  for (int rank = 0; rank < count; ++rank) replicas.push_back(start(rank, count, store->getPort(), argv, before));
  if (const int asked = watch(replicas, signals)) {
    say(std::string("stopped by signal ") + std::to_string(asked) + " (" + strsignal(asked) + "), all replicas too");
    return 128 + asked;
  }
  const auto culprit = std::max_element(replicas.begin(), replicas.end(),
                                        [](const Replica& a, const Replica& b) { return a.blame() < b.blame(); });
  if (!culprit->failed()) return 0;
  say(how_it_ended(*culprit) + (count > 1 ? "; the others were stopped" : ""));
  return 1;
}
