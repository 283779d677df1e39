#pragma once

#include <ATen/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace outerloop {

using at::Tensor;

/// A collective in flight. wait() returns when it has succeeded and its result may be read by whatever the caller does
/// next: on a GPU too the host waits, and the stream that is current then comes after it. Throws CommError. The tensors
/// of the collective must stay alive and untouched until then. Destruction waits too, and swallows the error.
class [[nodiscard]] Pending {
 public:
  Pending() = default;  ///< already complete
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();
  void wait();

 private:
  std::function<void()> wait_;
};

/// A fixed group of replicas. Tensors are contiguous and on device(). Every rank makes the same calls in the same
/// order, from one thread at a time. A failed call throws CommError, and so does every later call on the same group,
/// whose connections close then: the other ranks fail as well, instead of waiting for this one.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual at::Device device() const = 0;
  virtual Pending all_reduce_sum(Tensor flat) = 0;  ///< flat <- sum over ranks of flat
  virtual Pending all_gather(Tensor rows,
                             Tensor flat) = 0;            ///< rows[r] <- flat of rank r; rows is [size(), flat.numel()]
  virtual Pending all_to_all(Tensor out, Tensor in) = 0;  ///< row r of out <- row rank() of rank r's in; size() rows
  virtual Pending broadcast(Tensor flat, int root) = 0;   ///< flat <- flat of root
  /// Groups of the same replicas whose collectives may be under way while this one's and each other's are. They live as
  /// long as this one, are used from the same thread, and fail together. See Rendezvous.
  virtual std::vector<std::shared_ptr<Communicator>> lanes() { return {}; }
};

/// How long a collective, or the meeting of all ranks, may take before it fails with CommError.
inline constexpr std::chrono::milliseconds default_timeout{300'000};

struct Rendezvous {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  ///< where rank 0 listens
  uint16_t port = 29500;
  std::chrono::milliseconds timeout = default_timeout;
  /// In [0, 64], the same on every rank, or meeting fails. With lanes, the wire of a round goes in pieces, several at a
  /// time. Without a delay, with a rule of the library's and the outer state beside the parameters and on the group's
  /// device, pieces are formed and stepped while others travel; that takes a second vector of velocities, 4 bytes per
  /// parameter. Over Gloo each lane has connections of its own; over NCCL all pieces take turns on one communicator,
  /// whatever the number. With two replicas the bits are those of 0; with more, sums may be added up in another order.
  int lanes = 0;
};

/// The group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, as torchrun sets them (its agent's store is
/// used when TORCHELASTIC_USE_AGENT_STORE is set); without RANK and WORLD_SIZE, a group of one. It is over NCCL if
/// every rank has a GPU of its own, else over Gloo on all of them; device() tells. A rank's GPU is number LOCAL_RANK,
/// or RANK if that is not set, of those that its process sees; it has none if there are fewer, or if its program does
/// not link outerloop::cuda. Where each process sees one GPU, all its own, set LOCAL_RANK to 0. Collective: returns
/// when all ranks have come, throws CommError when they have not within `timeout`. `lanes` as in Rendezvous.
std::shared_ptr<Communicator> connect_from_env(std::chrono::milliseconds timeout = default_timeout, int lanes = 0);

/// A group over Gloo (TCP). GLOO_SOCKET_IFNAME names the network interface to use. Collective, as connect_from_env.
/// Several groups on different threads of one process need TORCH_FR_BUFFER_SIZE=0 in its environment: libtorch's record
/// of collectives, which that switches off, is not thread-safe.
std::shared_ptr<Communicator> connect_gloo(const Rendezvous& at);

/// A group over NCCL, of tensors on GPU `cuda_device`: one for each rank. Collective, as connect_from_env; a build
/// without NCCL throws c10::Error. Its communicator is its own, and its operations come after what the current stream
/// was given before: wait for the collectives of other groups on that GPU first (DDP does), or the two may wait for
/// each other.
///
/// A failure is a CommError here, whatever the environment says of c10d's ways to end the process: while it connects,
/// TORCH_NCCL_BLOCKING_WAIT is 1 and TORCH_NCCL_ASYNC_ERROR_HANDLING 0, and no other thread should use the environment
/// or construct process groups, unless they are set so already. `at.timeout` counts from the call of a collective, with
/// the work that the stream does before. After a failure the communicator is aborted, and the other ranks fail as well.
/// Groups may go in any order; each waits up to 3 s for the other ranks to let go of theirs, and lives on for them
/// otherwise.
std::shared_ptr<Communicator> connect_nccl(const Rendezvous& at, int cuda_device);

/// A group of one: every collective is the identity.
std::shared_ptr<Communicator> connect_alone();

/// Bytes that each of `size` ranks sends in a ring all-reduce of `payload` bytes: 2 (size - 1) / size * payload.
int64_t all_reduce_bytes(int64_t payload, int size);

}  // namespace outerloop
