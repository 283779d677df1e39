#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "planner/check.hpp"
#include "planner/traffic.hpp"

namespace outerloop::planner {

namespace {

/// Goes through rounds, moment by moment, and adds up what is waited.
class Clock {
 public:
  Clock(const Traffic& traffic, const Schedule& schedule, double step_seconds, double message_seconds)
      : traffic_(traffic),
        round_steps_(static_cast<double>(schedule.sync_every)),
        step_seconds_(step_seconds),
        message_seconds_(message_seconds),
        arrivals_(traffic.messages) {}

  void pass_round() {
    for (const Moment& at : traffic_.moments) {
      const double now = (round_ * round_steps_ + at.step) * step_seconds_ + waited_;
      if (at.event == Event::ready) {
        channel_free_ = std::max(channel_free_, now) + message_seconds_;
        arrivals_[at.message].push_back(channel_free_);
      } else if (const auto& arrivals = arrivals_[at.message]; at.since < arrivals.size()) {
        waited_ += std::max(0.0, arrivals.rbegin()[at.since] - now);
      }
    }
    ++round_;
  }
  double waited() const { return waited_; }

 private:
  const Traffic& traffic_;
  double round_steps_, step_seconds_, message_seconds_;
  std::vector<std::vector<double>> arrivals_;  ///< of each message, every time
  double channel_free_ = 0, waited_ = 0;
  int64_t round_ = 0;
};

double message_seconds(const Job& job, const Link& link, double bits, int trips) {
  const double share = 2.0 * (job.replicas - 1) / job.replicas;  // a ring all-reduce
  return trips * link.latency_seconds + share * bits / link.bits_per_second;
}

double simulate(const Job& job, const Link& link, const Schedule& schedule, const Traffic& traffic) {
  const double messages = static_cast<double>(traffic.messages),
               bits = schedule.bits * static_cast<double>(job.parameters) / messages,
               each = job.replicas == 1 ? 0 : message_seconds(job, link, bits, traffic.trips),
               computing = static_cast<double>(schedule.sync_every) * job.step_seconds;
  constexpr int rounds = 16;  // to begin with, until what the channel is behind with no longer grows; then counted
  Clock clock(traffic, schedule, job.step_seconds, each);
  for (int round = 0; round < rounds; ++round) clock.pass_round();
  const double before = clock.waited();
  for (int round = 0; round < rounds; ++round) clock.pass_round();
  const double waited = (clock.waited() - before) / rounds;
  // A channel with hardly more to do than time for it is behind later than that; then no round is shorter than its own.
  return computing / std::max(computing + waited, messages * each);
}

/// The smallest of the numbers 2^x, 0 <= x <= 1000, that is enough; infinity if not even infinity is.
template <class Enough>
double smallest(Enough enough) {
  if (!enough(std::numeric_limits<double>::infinity())) return std::numeric_limits<double>::infinity();
  double too_few = 0, plenty = 1000;  // an exponent that a double has room for
  for (double middle = 500; too_few < middle && middle < plenty; middle = std::midpoint(too_few, plenty)) {
    (enough(std::exp2(middle)) ? plenty : too_few) = middle;
  }
  return std::exp2(plenty);
}

}  // namespace

double utilisation(const Job& job, const Link& link, const Schedule& schedule) {
  check(job);
  check(link);
  check(schedule, job);
  return simulate(job, link, schedule, traffic_of(job, schedule));
}

double bandwidth_needed(const Job& job, double latency_seconds, const Schedule& schedule, double target) {
  check(job);
  check_latency(latency_seconds);
  check(schedule, job);
  check_target(target);
  const Traffic traffic = traffic_of(job, schedule);
  return smallest([&](double bandwidth) {
    return reaches(simulate(job, {bandwidth, latency_seconds}, schedule, traffic), target);
  });
}

}  // namespace outerloop::planner
