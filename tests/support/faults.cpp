#include "support/faults.hpp"

namespace outerloop::testing {

Tapped::Tapped(std::shared_ptr<Communicator> group, std::function<void(const Call&)> before,
               std::function<void(const Call&)> after)
    : group_(std::move(group)), before_(std::move(before)), after_(std::move(after)) {
  const auto tell = [this](const Call& call) {
    calls.push_back(call);
    if (before_) before_(call);
  };
  for (const auto& lane : group_->lanes()) lanes_.push_back(std::make_shared<Tapped>(lane, tell, after_));
}

template <class Begin>
Pending Tapped::tap(Call call, const Begin& begin) {
  calls.push_back(call);
  if (before_) before_(call);
  Pending pending = begin();
  if (!after_) return pending;
  pending.wait();
  after_(call);
  return {};
}

Pending Tapped::all_reduce_sum(Tensor flat) {
  return tap({"all_reduce_sum", flat.scalar_type(), flat.numel()}, [&] { return group_->all_reduce_sum(flat); });
}

Pending Tapped::all_gather(Tensor rows, Tensor flat) {
  return tap({"all_gather", flat.scalar_type(), flat.numel()}, [&] { return group_->all_gather(rows, flat); });
}

Pending Tapped::all_to_all(Tensor out, Tensor in) {
  return tap({"all_to_all", in.scalar_type(), in.numel()}, [&] { return group_->all_to_all(out, in); });
}

Pending Tapped::broadcast(Tensor flat, int root) {
  return tap({"broadcast", flat.scalar_type(), flat.numel()}, [&] { return group_->broadcast(flat, root); });
}

}  // namespace outerloop::testing
