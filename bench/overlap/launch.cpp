#include "launch.hpp"

#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace outerloop::bench {

namespace {

/// One that the kernel says is free.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket, generic, size) != 0 || getsockname(socket, generic, &size) != 0) {
    throw std::runtime_error("no free port on this machine");
  }
  close(socket);
  return ntohs(address.sin_port);
}

void become(int rank) { setenv("RANK", std::to_string(rank).c_str(), 1); }

}  // namespace

bool is_replica() { return std::getenv("RANK") != nullptr; }

int launch(const std::function<int()>& replica) {
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  const pid_t other = fork();
  if (other < 0) throw std::runtime_error("cannot start the other replica");
  become(other == 0 ? 1 : 0);
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(replica());
  }
  const int code = replica();
  int status = 0;
  waitpid(other, &status, 0);
  return code != 0 ? code : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace outerloop::bench
