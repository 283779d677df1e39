#include "optimizer/schedule.hpp"

#include <algorithm>

namespace outerloop::optimizer {

Schedule::Schedule(int64_t sync_every, int64_t fragments, int64_t delay) : sync_every_(sync_every), delay_(delay) {
  // Split, so that sync_every * fragments cannot overflow.
  const int64_t share = sync_every / fragments, rest = sync_every % fragments;
  for (int64_t f = 1; f <= fragments; ++f) applied_at_.push_back(share * f + (rest * f + fragments - 1) / fragments);
}

std::optional<size_t> Schedule::sent_after(int64_t step) const {
  const int64_t applied = (step - 1 + delay_) % sync_every_ + 1;  // within the window, 1 to sync_every
  const auto found = std::lower_bound(applied_at_.begin(), applied_at_.end(), applied);
  if (*found != applied) return std::nullopt;
  return found - applied_at_.begin();
}

}  // namespace outerloop::optimizer
