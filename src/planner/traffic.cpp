#include "planner/traffic.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace outerloop::planner {

namespace {

/// ceil(sync_every * (fragment + 1) / fragments), without the product, which may overflow.
int64_t needed_after(int64_t fragment, const Schedule& schedule) {
  const int64_t whole = schedule.sync_every / schedule.fragments, rest = schedule.sync_every % schedule.fragments;
  return whole * (fragment + 1) + (rest * (fragment + 1) + schedule.fragments - 1) / schedule.fragments;
}

class Round {
 public:
  explicit Round(const Schedule& schedule) : length_(static_cast<double>(schedule.sync_every)) {}

  /// Sent `early` steps before the end of step `sent`, needed `late` steps after the end of step `needed`.
  void add(int64_t sent, double early, int64_t needed, double late) {
    const Place ready = place(static_cast<double>(sent) - early), wanted = place(static_cast<double>(needed) + late);
    const double since = wanted.round - ready.round - (ready.step > wanted.step ? 1 : 0);
    traffic_.moments.push_back({ready.step, Event::ready, traffic_.messages});
    traffic_.moments.push_back(
        {wanted.step, Event::needed, traffic_.messages, static_cast<size_t>(std::max(0.0, since))});
    ++traffic_.messages;
  }
  Traffic in_order(int trips) {
    std::ranges::sort(traffic_.moments, {}, [](const Moment& at) { return std::tuple(at.step, at.event); });
    traffic_.trips = trips;
    return std::move(traffic_);
  }

 private:
  struct Place {
    double round, step;
  };
  Place place(double step) const {
    const double round = std::ceil(step / length_) - 1;
    return {round, step - round * length_};
  }

  double length_;
  Traffic traffic_;
};

}  // namespace

Traffic traffic_of(const Job& job, const Schedule& schedule) {
  Round round(schedule);
  if (schedule.sending == Sending::after_step) {
    for (int fragment = 0; fragment < schedule.fragments; ++fragment) {
      const int64_t needed = needed_after(fragment, schedule);
      round.add(needed - schedule.delay, 0, needed, 0);
    }
    return round.in_order(2);
  }
  for (int layer = 0; layer < job.layers; ++layer) {
    // The layers below it are still to be gone through backward, and then forward.
    const double below = static_cast<double>(layer) / job.layers;
    const int64_t needed = needed_after(layer % schedule.fragments, schedule);
    round.add(needed - schedule.delay, below * 2 / 3, needed, below / 3);
  }
  return round.in_order(1);
}

}  // namespace outerloop::planner
