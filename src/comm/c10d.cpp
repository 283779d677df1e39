#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <outerloop/c10d.hpp>
#include <outerloop/error.hpp>

namespace outerloop {

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

/// c10d beneath a Communicator. A group that failed once is poisoned (Gloo closes its connections), so the first
/// failure is kept and repeated by every later call.
class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(Group group, at::Device device)
      : group_(std::move(group)), device_(device), failure_(std::make_shared<std::string>()) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  at::Device device() const override { return device_; }

  Pending all_reduce_sum(Tensor flat) override {
    check(flat, "all_reduce_sum");
    return start("all_reduce_sum", flat, [this, flat] {
      std::vector<Tensor> tensors{flat};  // exactly one: a vector of several would be summed together
      return group_->allreduce(tensors, {.reduceOp = c10d::ReduceOp::SUM});
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
      return group_->_allgather_base(out, in);
    });
  }

  Pending broadcast(Tensor flat, int root) override {
    check(flat, "broadcast");
    TORCH_CHECK(root >= 0 && root < size(), "broadcast: root ", root, " is not a rank of a group of ", size());
    return start("broadcast", flat, [this, flat, root] {
      std::vector<Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

 private:
  void check(const Tensor& tensor, const char* operation) const {
    TORCH_CHECK(
        tensor.defined() && tensor.device() == device_ && tensor.is_contiguous(), operation,
        ": needs a contiguous tensor on ", device_, ", got ",
        tensor.defined() ? c10::str(tensor.device(), tensor.is_contiguous() ? "" : ", not contiguous") : "none");
  }

  template <class Begin>
  Pending start(const char* operation, const Tensor& tensor, Begin begin) {
    if (!failure_->empty()) throw CommError("the group is unusable since an earlier failure: " + *failure_);
    const at::NoGradGuard no_grad;
    const std::string what = c10::str(operation, " of ", tensor.nbytes(), " bytes on rank ", rank(), " of ", size());
    const auto fail = [failure = failure_, what](const std::exception& error) {
      *failure = what + " failed: " + error.what();
      throw CommError(*failure);
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

  const Group group_;
  const at::Device device_;
  const std::shared_ptr<std::string> failure_;
};

}  // namespace

std::shared_ptr<Communicator> from_c10d(Group group, at::Device device) {
  TORCH_CHECK(group, "from_c10d: the process group is null");
  return std::make_shared<C10dCommunicator>(std::move(group), device);
}

}  // namespace outerloop
