#pragma once

#include <outerloop/communicator.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace outerloop::testing {

/// Passes every collective on to `group` after telling `before` about it, and tells `after` when it is done; both may
/// throw or kill the process. Counts.
class Tapped final : public Communicator {
 public:
  struct Call {
    std::string name;  ///< "all_reduce_sum", "all_gather", "all_to_all" or "broadcast"
    at::ScalarType dtype;
    int64_t numel;
  };
  explicit Tapped(std::shared_ptr<Communicator> group, std::function<void(const Call&)> before = nullptr,
                  std::function<void(const Call&)> after = nullptr);
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  Pending all_reduce_sum(Tensor flat) override;
  Pending all_gather(Tensor rows, Tensor flat) override;
  Pending all_to_all(Tensor out, Tensor in) override;
  Pending broadcast(Tensor flat, int root) override;
  std::vector<std::shared_ptr<Communicator>> lanes() override { return lanes_; }  ///< what they do is told here
  std::vector<Call> calls;

 private:
  template <class Begin>
  Pending tap(Call call, const Begin& begin);
  std::shared_ptr<Communicator> group_;
  std::function<void(const Call&)> before_, after_;
  std::vector<std::shared_ptr<Communicator>> lanes_;
};

}  // namespace outerloop::testing
