#include "contest.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "model.hpp"
#include "planner/link.hpp"

namespace outerloop::bench {

namespace {

constexpr int fragments = 4;
constexpr double busy = 0.8;  ///< communication / computing
constexpr double bits = 32.0 * Model::parameters;

/// What all replicas saw, by rank. Losses stay where they are.
using Trials = std::vector<Trial>;

Trials tell(Communicator& comm, const Trial& mine) {
  std::vector<double> numbers{mine.step_seconds, mine.computing_seconds, mine.under_way_seconds, mine.quiet_seconds,
                              mine.peak_bytes};
  numbers.insert(numbers.end(), mine.waits.begin(), mine.waits.end());
  const Tensor row = at::tensor(numbers, at::kDouble), rows = at::empty({comm.size(), row.numel()}, at::kDouble);
  comm.all_gather(rows, row).wait();
  Trials trials;
  for (int64_t rank = 0; rank < comm.size(); ++rank) {
    const auto* value = rows[rank].const_data_ptr<double>();
    trials.push_back({{}, value[0], value[1], value[2], value[3], value[4], {value + 5, value + row.numel()}});
  }
  return trials;
}

bool all_agree(Communicator& comm, bool mine) {
  const Tensor disagreeing = at::tensor({mine ? 0.0 : 1.0}, at::kDouble);
  comm.all_reduce_sum(disagreeing).wait();
  return disagreeing.item<double>() == 0;
}

double slowest(const Trials& trials, double Trial::*what) {
  return std::ranges::max(trials, {}, [&](const Trial& trial) { return trial.*what; }).*what;
}

double mean(const Trials& trials, double Trial::*what) {
  double sum = 0;
  for (const Trial& trial : trials) sum += trial.*what;
  return sum / static_cast<double>(trials.size());
}

double waited(const Trial& trial) { return std::accumulate(trial.waits.begin(), trial.waits.end(), 0.0); }

/// The replica that is behind waits for the link alone, the other one for it as well.
double waited_for_link(const Trials& trials) {
  double sum = 0;
  for (size_t i = 0; i < trials[0].waits.size(); ++i) {
    sum += std::ranges::min(trials, {}, [&](const Trial& trial) { return trial.waits[i]; }).waits[i];
  }
  return sum;
}

double message_seconds(const planner::Link& link) {
  return 2 * link.latency_seconds + bits / link.bits_per_second;  // two replicas: a message sends its bits once
}

/// With which a message of the whole takes so long.
planner::Link link_of(double seconds, double latency_seconds) {
  return {.bits_per_second = bits / (seconds - 2 * latency_seconds), .latency_seconds = latency_seconds};
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Contest {
 public:
  explicit Contest(const Options& options) : options_(options), open_(connect_from_env()) {
    TORCH_CHECK(open_->size() == 2, "two replicas are wanted, got ", open_->size());
    const double computing = slowest(tell(*open_, train(open_, {}, 3)), &Trial::computing_seconds);
    if (!options.throttled.empty()) connect_throttled(computing);
    results_.tells = open_->rank() == 0;
    results_.contenders = {contender(1, 0), contender(1, delay_for(1)), contender(fragments, delay_for(fragments))};
  }

  void repeat() {
    for (Contender& contender : results_.contenders) compare(contender);
    // Half of the steps with a flight under way, half without.
    Plan plan = results_.contenders[1].plan;
    plan.sync_every *= 2;
    const Trials shared = tell(*open_, train(throttled_, plan, windows()));
    results_.courier_shared.push_back(mean(shared, &Trial::under_way_seconds) / mean(shared, &Trial::quiet_seconds));
    const Steps mine = open_->rank() == 0 ? Steps::train : Steps::skip;
    const Trial alone = tell(*open_, train(throttled_, plan, windows(), mine))[0];
    results_.courier_alone.push_back(alone.under_way_seconds / alone.quiet_seconds);
  }

  Results results() && { return std::move(results_); }

 private:
  int64_t windows() const { return options_.windows; }

  /// The link is as it is, and the window follows it.
  void connect_throttled(double computing) {
    setenv("GLOO_SOCKET_IFNAME", options_.throttled.c_str(), 1);
    throttled_ = connect_from_env();
    link_ = planner::probe(*throttled_);
    const double steps = message_seconds(link_) / (busy * computing);
    sync_every_ = fragments * std::max<int64_t>(2, std::llround(steps / fragments));
  }
  /// As long as a message, and a tenth of the window more, for replicas that are not equally fast at all times.
  int64_t delay_for(int count) const {
    const auto steps = std::ceil((busy / count + 0.1) * static_cast<double>(sync_every_) - 1e-9);
    return std::min(std::lround(steps), sync_every_ - 1);
  }
  Contender contender(int count, int64_t delay) const {
    std::string name = count == 1 ? "whole" : std::to_string(count) + " fragments";
    if (delay > 0) name += ", delay " + std::to_string(delay);
    return {name, {sync_every_, count, delay}};
  }

  void compare(Contender& contender) {
    Pair& pair = contender.pair;
    const Trial open = train(open_, contender.plan, windows());
    const Trials all_open = tell(*open_, open);
    const double computing = slowest(all_open, &Trial::computing_seconds);
    const bool first = &contender == results_.contenders.data();
    if (first) choose_link(computing);
    const Trial slow = train(throttled_, contender.plan, windows());
    const Trials all_slow = tell(*open_, slow);
    if (pair.losses.empty()) pair.losses = open.losses;
    const bool same = open.losses == pair.losses && slow.losses == pair.losses;
    pair.same_losses = all_agree(*open_, same) && pair.same_losses;
    pair.peak_bytes = slowest(all_slow, &Trial::peak_bytes);
    pair.computing.push_back(computing);
    pair.open_step.push_back(slowest(all_open, &Trial::step_seconds));
    pair.step.push_back(slowest(all_slow, &Trial::step_seconds));
    pair.predicted_step.push_back(predicted(contender.plan, computing));
    pair.wait.push_back((waited(all_slow[0]) + waited(all_slow[1])) / 2 / options_.windows);
    pair.link_wait.push_back(waited_for_link(all_slow) / options_.windows);
    pair.hidden.push_back(1 - pair.link_wait.back() / results_.contenders[0].pair.link_wait.back());
  }

  double predicted(const Plan& plan, double computing) const {
    const planner::Job job{
        .parameters = Model::parameters, .step_seconds = computing, .layers = Model::layers, .replicas = 2};
    const planner::Schedule schedule{.sync_every = plan.sync_every, .fragments = plan.fragments, .delay = plan.delay};
    return computing / planner::utilisation(job, link_, schedule);
  }

  /// As fast as steps are in this repetition: the token bucket can be any.
  void choose_link(double computing) {
    const double window = static_cast<double>(sync_every_) * computing;
    if (options_.throttled.empty()) {
      link_ = link_of(busy * window, options_.latency_ms / 1e3);
      throttled_ = planner::behind(link_, open_, sleep);
    }
    results_.mbit.push_back(link_.bits_per_second / 1e6);
    results_.busy.push_back(message_seconds(link_) / window);
    results_.latency_seconds = link_.latency_seconds;
  }

  const Options& options_;
  std::shared_ptr<Communicator> open_, throttled_;
  planner::Link link_;
  int64_t sync_every_ = 20;
  Results results_;
};

}  // namespace

Results hold_contest(const Options& options) {
  at::set_num_threads(1);
  Contest contest(options);
  for (int i = 0; i < options.repetitions; ++i) contest.repeat();
  return std::move(contest).results();
}

}  // namespace outerloop::bench
