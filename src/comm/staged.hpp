#pragma once

#include <outerloop/communicator.hpp>

#include <map>
#include <memory>
#include <string>

#include "kernels/staging.hpp"

namespace outerloop::comm {

/// A group for tensors on another device than its own: CUDA tensors over Gloo, by way of pinned memory, or CPU tensors
/// over NCCL. Long ones go chunk by chunk; the copy of one overlaps the transport of the one before, and no memory is
/// needed but two buffers. Calls return when the tensor's current stream has been given the result.
class Staged final : public Communicator {
 public:
  /// `comm` must outlive it.
  Staged(Communicator& comm, at::Device device) : comm_(comm), device_(device), staging_(comm.device()) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  at::Device device() const override { return device_; }
  Pending all_reduce_sum(Tensor flat) override;
  Pending all_gather(Tensor rows, Tensor flat) override;
  Pending all_to_all(Tensor out, Tensor in) override;
  Pending broadcast(Tensor flat, int root) override;

 private:
  template <class Collective>
  void by_chunks(const Tensor& flat, const Collective& collective);

  Communicator& comm_;
  at::Device device_;
  kernels::Staging staging_;
};

/// One group, for tensors on any device.
class Reach {
 public:
  explicit Reach(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {}
  const std::shared_ptr<Communicator>& group() const { return comm_; }
  /// The group itself for its own device, else a Staged that is kept.
  Communicator& from(at::Device device);

 private:
  std::shared_ptr<Communicator> comm_;
  std::map<std::string, std::unique_ptr<Staged>> staged_;
};

}  // namespace outerloop::comm
