#include "codec/residuals.hpp"

namespace outerloop::codec {

Tensor Residuals::folded() const {
  if (!own.defined()) return {};
  Tensor sum = own.clone();
  if (owner.defined()) sum.narrow(0, owner_begin, owner.numel()).add_(owner, ranks);
  return sum;
}

void Residuals::follow(int ranks_now, int rank_now) {
  if (!own.defined() || (ranks == ranks_now && rank == rank_now)) return;
  *this = {folded().mul_(static_cast<double>(ranks_now) / ranks), {}, 0, ranks_now, rank_now};
}

}  // namespace outerloop::codec
