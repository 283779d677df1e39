#include "support/faults.hpp"

namespace outerloop::testing {

void Tapped::tap(Call call) {
  calls.push_back(call);
  if (before_) before_(call);
}

Pending Tapped::all_reduce_sum(Tensor flat) {
  tap({"all_reduce_sum", flat.scalar_type(), flat.numel()});
  return group_->all_reduce_sum(std::move(flat));
}

Pending Tapped::all_gather(Tensor rows, Tensor flat) {
  tap({"all_gather", flat.scalar_type(), flat.numel()});
  return group_->all_gather(std::move(rows), std::move(flat));
}

Pending Tapped::broadcast(Tensor flat, int root) {
  tap({"broadcast", flat.scalar_type(), flat.numel()});
  return group_->broadcast(std::move(flat), root);
}

}  // namespace outerloop::testing
