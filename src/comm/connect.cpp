#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <outerloop/communicator.hpp>
#include <outerloop/error.hpp>

#include "comm/deadline.hpp"
#include "comm/gloo.hpp"
#include "comm/nccl.hpp"
#include "comm/serial.hpp"

namespace outerloop {

namespace {

void check(const Rendezvous& at) {
  TORCH_CHECK(at.size >= 1, "size must be >= 1, got ", at.size);
  TORCH_CHECK(at.rank >= 0 && at.rank < at.size, "rank must be in [0, size), got rank ", at.rank, " of size ", at.size);
  TORCH_CHECK(!at.host.empty(), "host must not be empty");
  constexpr std::chrono::hours longest{24 * 365};  // clocks of libtorch overflow some centuries later
  TORCH_CHECK(at.timeout.count() > 0 && at.timeout <= longest, "timeout must be positive and at most a year, got ",
              at.timeout.count(), " ms");
}

c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& at, bool serve) {
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serve;
  options.numWorkers = at.size;
  options.waitWorkers = false;  // the group's own rendezvous waits
  options.timeout = at.timeout;
  options.multiTenant = true;  // a process may make several groups at one address
  try {
    // A listener that never answers keeps the client waiting for ever.
    return comm::within(at.timeout, [host = at.host, options]() -> c10::intrusive_ptr<c10d::Store> {
      return c10::make_intrusive<c10d::TCPStore>(host, options);
    });
  } catch (const std::exception& error) {
    throw CommError(c10::str("rank ", at.rank, " of ", at.size,
                             serve ? " could not listen at " : " could not reach rank 0 at ", at.host, ":", at.port,
                             " within ", at.timeout.count(), " ms: ", error.what()));
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
bool all_have_gpus(const c10::intrusive_ptr<c10d::Store>& store, const Rendezvous& at, bool mine) {
  const auto count = [store, mine, rank = at.rank, size = at.size, timeout = at.timeout] {
    const std::string serial = comm::serial_from_rank_zero(store, rank, size, timeout);
    c10d::PrefixStore keys("gpus/" + serial, store);
    keys.add("own", mine ? 1 : 0);
    if (keys.add("counted", 1) == size) keys.set("all counted", std::vector<uint8_t>{1});
    keys.wait({"all counted"}, timeout);
    return keys.add("own", 0) == size;
  };
  try {
    return comm::within(at.timeout, count);
  } catch (const std::exception& error) {
    throw CommError(c10::str("rank ", at.rank, " of ", at.size, " could not learn by way of ", at.host, ":", at.port,
                             " within ", at.timeout.count(), " ms whether all ranks have a GPU: ", error.what()));
  }
}

}  // namespace

std::shared_ptr<Communicator> connect_gloo(const Rendezvous& at) {
  check(at);
  if (at.size == 1) return connect_alone();
  return comm::gloo_over(open_store(at, at.rank == 0), at.rank, at.size, at.host, at.timeout);
}

std::shared_ptr<Communicator> connect_nccl(const Rendezvous& at, int cuda_device) {
  comm::check_nccl_device(cuda_device);
  check(at);
  if (at.size == 1) return connect_alone();
  return comm::nccl_over(open_store(at, at.rank == 0), at.rank, at.size, cuda_device, at.timeout);
}

std::shared_ptr<Communicator> connect_from_env(std::chrono::milliseconds timeout) {
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
  const Rendezvous at{static_cast<int>(*rank), static_cast<int>(*size), host, static_cast<uint16_t>(*port), timeout};
  check(at);
  const auto gpu = own_gpu(at.rank);

  // torchrun's agent listens at MASTER_PORT itself; every rank is then a client.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_serves = agent && std::strcmp(agent, "True") == 0;
  auto store = open_store(at, !agent_serves && at.rank == 0);
  // After an elastic restart the agent's store still holds the keys of the processes before.
  if (const auto restarts = env_integer("TORCHELASTIC_RESTART_COUNT", 0, INT64_MAX)) {
    store = c10::make_intrusive<c10d::PrefixStore>(c10::str("restart/", *restarts), store);
  }
  if (all_have_gpus(store, at, gpu.has_value())) {
    return comm::nccl_over(std::move(store), at.rank, at.size, *gpu, at.timeout);
  }
  return comm::gloo_over(std::move(store), at.rank, at.size, at.host, at.timeout);
}

}  // namespace outerloop
