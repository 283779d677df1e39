#include "comm/c10d.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include <outerloop/error.hpp>

#include "comm/message.hpp"

namespace outerloop {

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

/// A group and its lanes, until the first failure or the end, and how they are parted from; shared with the operations
/// in flight.
class Link {
 public:
  Link(std::vector<Group> groups, comm::Part part) : groups_(std::move(groups)), part_(std::move(part)) {}
  Link(const Link&) = delete;
  ~Link() { part(comm::Parting::healthy); }

  c10d::ProcessGroup& group(size_t number) const {
    if (groups_.empty()) throw CommError("the group is unusable since an earlier failure: " + failure_);
    return *groups_[number];
  }
  [[noreturn]] void fail(const std::string& message) {
    if (!groups_.empty()) failure_ = message;
    part(comm::Parting::failed);
    throw CommError(message);
  }

 private:
  void part(comm::Parting how) noexcept {
    std::vector<Group> groups = std::exchange(groups_, {});
    const comm::Part part = std::exchange(part_, nullptr);
    while (!groups.empty()) {
      Group group = std::move(groups.back());
      groups.pop_back();
      const bool again = std::find(groups.begin(), groups.end(), group) != groups.end();
      if (part && !again) part(std::move(group), how);
    }
  }

  std::vector<Group> groups_;
  comm::Part part_;
  std::string failure_;
};

/// How long the backend lets an operation take. Not all of them know.
std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group, at::Device device) {
  try {
    return group.getBackend(device.type())->getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    return default_timeout;
  }
}

/// c10d beneath a Communicator. A group that failed once is poisoned (Gloo closes the connections of the failed
/// operation, NCCL's communicator is aborted), so the first failure is kept and repeated by every later call. The group
/// itself is parted from: unless it has other owners its connections close, and ranks that wait for this one hear of
/// the failure at once.
class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(std::shared_ptr<Link> link, size_t number, at::Device device)
      : rank_(link->group(number).getRank()),
        size_(link->group(number).getSize()),
        device_(device),
        // c10d's wait() for a GPU returns at once, the reduction neither done nor known to succeed, unless it is given
        // a time: then it waits for both, and aborts an operation that takes longer.
        patience_(device.is_cpu() ? kNoTimeout : timeout_of(link->group(number), device)),
        link_(std::move(link)),
        number_(number) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  at::Device device() const override { return device_; }

  Pending all_reduce_sum(Tensor flat) override {
    check(flat, "all_reduce_sum");
    return start("all_reduce_sum", flat, [this, flat] {
      std::vector<Tensor> tensors{flat};  // exactly one: a vector of several would be summed together
      return group().allreduce(tensors, {.reduceOp = c10d::ReduceOp::SUM});
    });
  }

  Pending all_gather(Tensor rows, Tensor flat) override {
    check(flat, "all_gather");
    check(rows, "all_gather");
    TORCH_CHECK(rows.scalar_type() == flat.scalar_type() && rows.numel() == size() * flat.numel(), "all_gather: rows ",
                rows.scalar_type(), rows.sizes(), " must hold ", size(), " times flat ", flat.scalar_type(),
                flat.sizes());
    return start("all_gather", flat, [this, rows, flat]() mutable {
      Tensor out = rows.view(-1), in = flat.view(-1);
      return group()._allgather_base(out, in);
    });
  }

  Pending all_to_all(Tensor out, Tensor in) override {
    check(in, "all_to_all");
    check(out, "all_to_all");
    TORCH_CHECK(in.scalar_type() == out.scalar_type() && in.numel() == out.numel() && in.numel() % size() == 0,
                "all_to_all: in ", in.scalar_type(), in.sizes(), " and out ", out.scalar_type(), out.sizes(),
                " must be alike, of ", size(), " rows");
    return start("all_to_all", in, [this, out, in]() mutable {
      Tensor to = out.view(-1), from = in.view(-1);
      std::vector<int64_t> equal;
      return group().alltoall_base(to, from, equal, equal);
    });
  }

  Pending broadcast(Tensor flat, int root) override {
    check(flat, "broadcast");
    TORCH_CHECK(root >= 0 && root < size(), "broadcast: root ", root, " is not a rank of a group of ", size());
    return start("broadcast", flat, [this, flat, root] {
      std::vector<Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group().broadcast(tensors, options);
    });
  }

  std::vector<std::shared_ptr<Communicator>> lanes() override { return lanes_; }
  void add_lane(std::shared_ptr<Communicator> lane) { lanes_.push_back(std::move(lane)); }

 private:
  c10d::ProcessGroup& group() const { return link_->group(number_); }

  void check(const Tensor& tensor, const char* operation) const {
    TORCH_CHECK(
        tensor.defined() && tensor.device() == device_ && tensor.is_contiguous(), operation,
        ": needs a contiguous tensor on ", device_, ", got ",
        tensor.defined() ? c10::str(tensor.device(), tensor.is_contiguous() ? "" : ", not contiguous") : "none");
  }

  template <class Begin>
  Pending start(const char* operation, const Tensor& tensor, Begin begin) {
    group();  // or throw
    const at::NoGradGuard no_grad;
    const std::string what = c10::str(operation, " of ", tensor.nbytes(), " bytes on rank ", rank_, " of ", size_);
    const auto fail = [link = link_, what](const std::exception& error) {
      link->fail(what + " failed: " + comm::message_of(error));
    };
    Work work;
    try {
      work = begin();
    } catch (const std::exception& error) {
      fail(error);
    }
    return Pending([work, fail, tensor, patience = patience_] {
      try {
        work->wait(patience);
      } catch (const std::exception& error) {
        fail(error);
      }
    });
  }

  const int rank_, size_;
  const at::Device device_;
  const std::chrono::milliseconds patience_;
  const std::shared_ptr<Link> link_;  ///< shared with the lanes and the operations in flight
  const size_t number_;               ///< of its group there
  std::vector<std::shared_ptr<Communicator>> lanes_;
};

/// "cuda" is the current one.
at::Device with_index(at::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

std::shared_ptr<Communicator> comm::over_c10d(std::vector<Group> groups, at::Device device, Part part) {
  const size_t count = groups.size();
  const auto link = std::make_shared<Link>(std::move(groups), std::move(part));
  const auto whole = std::make_shared<C10dCommunicator>(link, 0, with_index(device));
  for (size_t lane = 1; lane < count; ++lane) {
    whole->add_lane(std::make_shared<C10dCommunicator>(link, lane, with_index(device)));
  }
  return whole;
}

std::shared_ptr<Communicator> from_c10d(Group group, at::Device device) {
  TORCH_CHECK(group, "from_c10d: the process group is null");
  return comm::over_c10d({std::move(group)}, device);
}

}  // namespace outerloop
