#include <algorithm>
#include <ranges>
#include <tuple>

#include "planner/check.hpp"

namespace outerloop::planner {

namespace {

/// What is minimised.
auto cost(const Schedule& schedule) { return std::tuple(schedule.sync_every, schedule.delay, schedule.fragments); }

}  // namespace

std::optional<Recommendation> recommend(const Job& job, const Link& link, double target, double bits,
                                        const Limits& limits) {
  check(job);
  check(link);
  check_target(target);
  check_bits(bits);
  check(limits);
  std::optional<Recommendation> best;
  const auto longest = [&] { return best ? best->schedule.sync_every : limits.sync_every; };
  const auto consider = [&](int fragments, int64_t delay) {
    const auto schedule = [&](int64_t steps) {
      return Schedule{.sync_every = steps * fragments, .fragments = fragments, .delay = delay, .bits = bits};
    };
    // Steps from one fragment to the next: the more, the higher the utilisation.
    const auto candidates =
        std::views::iota(delay / fragments + 1, std::max(delay / fragments, longest() / fragments) + 1);
    const auto found = std::ranges::partition_point(
        candidates, [&](int64_t steps) { return !reaches(utilisation(job, link, schedule(steps)), target); });
    if (found == candidates.end() || (best && cost(best->schedule) <= cost(schedule(*found)))) return;
    best = {schedule(*found), utilisation(job, link, schedule(*found))};
  };
  for (int fragments = 1; fragments <= std::min(limits.fragments, job.layers); ++fragments) {
    for (int64_t delay = 0; delay <= std::min(limits.delay, longest() - 1); ++delay) consider(fragments, delay);
  }
  return best;
}

}  // namespace outerloop::planner
