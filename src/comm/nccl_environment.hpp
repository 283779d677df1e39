#pragma once

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace outerloop::comm {

/// The environment in which a failure of an NCCL group comes back as an exception, while this lives; afterwards it is
/// as before. c10d reads it when a group is constructed: by its defaults, and by what torchrun sets, a thread of the
/// group would end the process. Process groups that others construct meanwhile would see it too, so keep it short. One
/// at a time; a variable that is as it should be is not touched, for setenv and getenv on another thread may not meet.
class NcclEnvironment {
 public:
  NcclEnvironment() : alone_(mutex()) {
    set("TORCH_NCCL_BLOCKING_WAIT", "1");         // no such thread
    set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");  // and nothing for it to do
  }
  NcclEnvironment(const NcclEnvironment&) = delete;
  ~NcclEnvironment() {
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex of_the_process;
    return of_the_process;
  }
  void set(const char* name, const std::string& value) {
    const char* old = std::getenv(name);
    if (old && old == value) return;
    before_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
    setenv(name, value.c_str(), 1);
  }

  std::lock_guard<std::mutex> alone_;
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

}  // namespace outerloop::comm
