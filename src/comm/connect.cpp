#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include <outerloop/communicator.hpp>
#include <outerloop/error.hpp>

#include "comm/deadline.hpp"
#include "comm/gloo.hpp"
#include "comm/message.hpp"
#include "comm/nccl.hpp"
#include "comm/serial.hpp"

namespace outerloop {

namespace {

void check_lanes(int lanes) {
  constexpr int most_lanes = 64;  // connections for each are made between all ranks
  TORCH_CHECK(lanes >= 0 && lanes <= most_lanes, "lanes must be in [0, ", most_lanes, "], got ", lanes);
}

void check(const Rendezvous& at) {
  TORCH_CHECK(at.size >= 1, "size must be >= 1, got ", at.size);
  TORCH_CHECK(at.rank >= 0 && at.rank < at.size, "rank must be in [0, size), got rank ", at.rank, " of size ", at.size);
  TORCH_CHECK(!at.host.empty(), "host must not be empty");
  check_lanes(at.lanes);
  constexpr std::chrono::hours longest{24 * 365};  // clocks of libtorch overflow some centuries later
  TORCH_CHECK(at.timeout.count() > 0 && at.timeout <= longest, "timeout must be positive and at most a year, got ",
              at.timeout.count(), " ms");
}

using Store = c10::intrusive_ptr<c10d::Store>;

/// When the time that a rendezvous may take is over.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()));
  }
  bool over() const { return Clock::now() >= end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

Store open_store(const Rendezvous& at, bool serve, const std::string& prefix, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serve;
  options.numWorkers = at.size;
  options.waitWorkers = false;  // the group's own rendezvous waits
  options.timeout = timeout;
  options.multiTenant = true;  // a process may make several groups at one address
  // A listener that never answers keeps the client waiting for ever.
  return comm::within(timeout, [host = at.host, options, prefix]() -> Store {
    Store store = c10::make_intrusive<c10d::TCPStore>(host, options);
    if (!prefix.empty()) store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
    return store;
  });
}

/// Where this group meets: keys of its own, at rank 0 or (not `serve`) at torchrun's agent. All ranks have come. One
/// that comes early may find the store of an earlier group at that address, which goes with it: it tries again.
Store meet(const Rendezvous& at, const Deadline& end, bool serve, const std::string& prefix = "") {
  constexpr std::chrono::milliseconds pause{50};
  for (bool reached = false;; reached = false, std::this_thread::sleep_for(pause)) {
    try {
      const Store store = open_store(at, serve, prefix, end.left());
      reached = true;
      return comm::within(end.left(), [=, left = end.left()] { return comm::own_keys(store, at, left); });
    } catch (const CommError&) {
      throw;  // the others were met, and come to something else
    } catch (const std::exception& error) {
      if (!serve && !end.over()) continue;
      const char* failure = reached ? " did not meet the others"
                            : serve ? " could not listen"
                                    : " could not reach rank 0";
      throw CommError(c10::str("rank ", at.rank, " of ", at.size, failure, " at ", at.host, ":", at.port, " within ",
                               at.timeout.count(), " ms: ", comm::message_of(error)));
    }
  }
}

std::optional<int64_t> env_integer(const char* name, int64_t low, int64_t high) {
  const char* text = std::getenv(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  TORCH_CHECK(error == std::errc() && stop == end && value >= low && value <= high, name, " must be an integer in [",
              low, ", ", high, "], got '", text, "'");
  return value;
}

/// The GPU that no other rank of this host uses. torchrun numbers these; where nothing does, all ranks may be on one.
std::optional<int> own_gpu(int rank) {
  const int gpus = comm::nccl_devices();
  if (gpus == 0) return std::nullopt;
  const auto number = env_integer("LOCAL_RANK", 0, INT_MAX).value_or(rank);
  return number < gpus ? std::optional(static_cast<int>(number)) : std::nullopt;
}

/// Whether every rank has a GPU of its own: the same answer on all, which come to different ones by themselves.
bool all_have_gpus(const Store& keys, const Rendezvous& at, const Deadline& end, bool mine) {
  const auto count = [keys, mine, size = at.size, timeout = end.left()] {
    keys->add("own GPUs", mine ? 1 : 0);
    if (keys->add("counted", 1) == size) keys->set("all counted", std::vector<uint8_t>{1});
    keys->wait({"all counted"}, timeout);
    return keys->add("own GPUs", 0) == size;
  };
  try {
    return comm::within(end.left(), count);
  } catch (const std::exception& error) {
    throw CommError(c10::str("rank ", at.rank, " of ", at.size, " could not learn by way of ", at.host, ":", at.port,
                             " within ", at.timeout.count(),
                             " ms whether all ranks have a GPU: ", comm::message_of(error)));
  }
}

}  // namespace

std::shared_ptr<Communicator> connect_gloo(const Rendezvous& at) {
  check(at);
  if (at.size == 1) return connect_alone();
  const Deadline end(at.timeout);
  const Store keys = meet(at, end, at.rank == 0);
  return comm::gloo_over(keys, at, end.left());
}

std::shared_ptr<Communicator> connect_nccl(const Rendezvous& at, int cuda_device) {
  comm::check_nccl_device(cuda_device);
  check(at);
  if (at.size == 1) return connect_alone();
  const Deadline end(at.timeout);
  const Store keys = meet(at, end, at.rank == 0);
  return comm::nccl_over(keys, at, cuda_device, end.left());
}

std::shared_ptr<Communicator> connect_from_env(std::chrono::milliseconds timeout, int lanes) {
  check_lanes(lanes);
  constexpr int64_t most_ranks = 1 << 20;
  const auto size = env_integer("WORLD_SIZE", 1, most_ranks);
  const auto rank = env_integer("RANK", 0, size.value_or(most_ranks) - 1);
  if (!size && !rank) return connect_alone();
  TORCH_CHECK(size && rank, rank ? "RANK" : "WORLD_SIZE", " is set but ", rank ? "WORLD_SIZE" : "RANK",
              " is not: set both, as torchrun does, or neither for a group of one");
  if (*size == 1) return connect_alone();

  const char* host = std::getenv("MASTER_ADDR");
  const auto port = env_integer("MASTER_PORT", 1, 65535);
  TORCH_CHECK(host && *host, "MASTER_ADDR is not set: the host name or address of rank 0");
  TORCH_CHECK(port, "MASTER_PORT is not set: the port at which rank 0 listens");
  const Rendezvous at{
      static_cast<int>(*rank), static_cast<int>(*size), host, static_cast<uint16_t>(*port), timeout, lanes};
  check(at);
  const auto gpu = own_gpu(at.rank);

  // torchrun's agent listens at MASTER_PORT itself; every rank is then a client.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_serves = agent && std::strcmp(agent, "True") == 0;
  // After an elastic restart the agent's store still holds the keys of the processes before.
  const auto restarts = env_integer("TORCHELASTIC_RESTART_COUNT", 0, INT64_MAX);
  const Deadline end(timeout);
  const Store keys =
      meet(at, end, !agent_serves && at.rank == 0, restarts ? c10::str("restart/", *restarts) : std::string());
  if (all_have_gpus(keys, at, end, gpu.has_value())) {
    return comm::nccl_over(keys, at, *gpu, end.left());
  }
  return comm::gloo_over(keys, at, end.left());
}

}  // namespace outerloop
