#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <outerloop/c10d.hpp>
#include <outerloop/error.hpp>

namespace outerloop {

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

/// c10d beneath a Communicator. A group that failed once is poisoned (Gloo closes the connections of the failed
/// operation), so the first failure is kept and repeated by every later call. The group itself is let go of: unless it
/// has other owners its connections close, and ranks that wait for this one hear of the failure at once.
class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(Group group, at::Device device)
      : rank_(group->getRank()), size_(group->getSize()), device_(device), link_(std::make_shared<Link>()) {
    link_->group = std::move(group);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  at::Device device() const override { return device_; }

  Pending all_reduce_sum(Tensor flat) override {
    check(flat, "all_reduce_sum");
    return start("all_reduce_sum", flat, [this, flat] {
      std::vector<Tensor> tensors{flat};  // exactly one: a vector of several would be summed together
      return link_->group->allreduce(tensors, {.reduceOp = c10d::ReduceOp::SUM});
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
      return link_->group->_allgather_base(out, in);
    });
  }

  Pending broadcast(Tensor flat, int root) override {
    check(flat, "broadcast");
    TORCH_CHECK(root >= 0 && root < size(), "broadcast: root ", root, " is not a rank of a group of ", size());
    return start("broadcast", flat, [this, flat, root] {
      std::vector<Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return link_->group->broadcast(tensors, options);
    });
  }

 private:
  struct Link {
    Group group;  ///< until the first failure
    std::string failure;
  };

  void check(const Tensor& tensor, const char* operation) const {
    TORCH_CHECK(
        tensor.defined() && tensor.device() == device_ && tensor.is_contiguous(), operation,
        ": needs a contiguous tensor on ", device_, ", got ",
        tensor.defined() ? c10::str(tensor.device(), tensor.is_contiguous() ? "" : ", not contiguous") : "none");
  }

  template <class Begin>
  Pending start(const char* operation, const Tensor& tensor, Begin begin) {
    if (!link_->group) throw CommError("the group is unusable since an earlier failure: " + link_->failure);
    const at::NoGradGuard no_grad;
    const std::string what = c10::str(operation, " of ", tensor.nbytes(), " bytes on rank ", rank_, " of ", size_);
    const auto fail = [link = link_, what](const std::exception& error) {
      const std::string message = what + " failed: " + error.what();
      if (link->group) link->failure = message;
      link->group.reset();
      throw CommError(message);
    };
    Work work;
    try {
      work = begin();
    } catch (const std::exception& error) {
      fail(error);
    }
    return Pending([work, fail, tensor] {
      try {
        work->wait();
      } catch (const std::exception& error) {
        fail(error);
      }
    });
  }

  const int rank_, size_;
  const at::Device device_;
  const std::shared_ptr<Link> link_;  ///< shared with the operations in flight
};

}  // namespace

std::shared_ptr<Communicator> from_c10d(Group group, at::Device device) {
  TORCH_CHECK(group, "from_c10d: the process group is null");
  return std::make_shared<C10dCommunicator>(std::move(group), device);
}

}  // namespace outerloop
