#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace outerloop::optimizer {

/// Which fragment is sent when: a pure function of the inner step, the same on all replicas. Fragment f of n is applied
/// after inner steps a_f + k * sync_every, a_f = ceil(sync_every * (f + 1) / n), k = 0, 1, ..., and sent `delay` steps
/// before, unless that is before the first step.
class Schedule {
 public:
  /// Needs 1 <= fragments <= sync_every and 0 <= delay.
  Schedule(int64_t sync_every, int64_t fragments, int64_t delay);
  /// The fragment that is sent after inner step `step` (>= 1); one at most, as the a_f differ.
  std::optional<size_t> sent_after(int64_t step) const;
  int64_t delay() const { return delay_; }

 private:
  int64_t sync_every_, delay_;
  std::vector<int64_t> applied_at_;  ///< a_f
};

}  // namespace outerloop::optimizer
