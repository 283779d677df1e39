#include "optimizer/schedule.hpp"

#include <algorithm>

namespace outerloop::optimizer {

Schedule::Schedule(int64_t sync_every, int64_t fragments, int64_t delay) : sync_every_(sync_every), delay_(delay) {
  // Split, so that sync_every * fragments cannot overflow.
  const int64_t share = sync_every / fragments, rest = sync_every % fragments;
  for (int64_t f = 1; f <= fragments; ++f) applied_at_.push_back(share * f + (rest * f + fragments - 1) / fragments);
}

std::optional<size_t> Schedule::sent_after(int64_t step) const {
  // Within the window, 1 to sync_every; unsigned, as the sum of two of that may not be an int64_t.
  const auto window = static_cast<uint64_t>(sync_every_);
  const uint64_t sum = static_cast<uint64_t>(step - 1) % window + static_cast<uint64_t>(delay_) % window;
  const auto applied = static_cast<int64_t>(sum % window) + 1;
  const auto found = std::lower_bound(applied_at_.begin(), applied_at_.end(), applied);
  if (*found != applied) return std::nullopt;
  return found - applied_at_.begin();
}

}  // namespace outerloop::optimizer
