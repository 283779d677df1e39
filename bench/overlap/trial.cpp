#include "trial.hpp"

#include <torch/optim/adamw.h>
#include <outerloop/diloco.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "model.hpp"

namespace outerloop::bench {

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

FragmentPlan fragments_of(const Plan& plan) {
  return plan.fragments == 1 ? FragmentPlan::whole() : FragmentPlan::sequential(plan.fragments);
}

/// Steps are counted from 1, as in reports.
int64_t applied_after(const SyncReport& report) { return report.inner_step + report.staleness; }

/// What happened at each step, and the rounds that were applied by then.
struct Log {
  std::vector<double> seconds{0};  ///< of each step
  std::vector<SyncReport> reports;

  int64_t steps() const { return static_cast<int64_t>(seconds.size()) - 1; }
  /// Without what rounds took in it.
  std::vector<double> computing() const {
    std::vector<double> left = seconds;
    for (const SyncReport& report : reports) {
      left[report.inner_step] -= report.send.count();
      left[applied_after(report)] -= report.reduce_wait.count() + report.apply.count();
    }
    return left;
  }
  enum class State { quiet, under_way, round };
  std::vector<State> states() const {
    std::vector<State> states(seconds.size(), State::quiet);
    for (const SyncReport& report : reports) {
      for (int64_t step = report.inner_step; step < applied_after(report); ++step) states[step] = State::under_way;
    }
    for (const SyncReport& report : reports) {
      states[report.inner_step] = State::round;
      states[applied_after(report)] = State::round;
    }
    return states;
  }
};

void judge(const Log& log, const Plan& plan, Trial& trial) {
  const int64_t first = plan.sync_every + 1;
  const std::vector<double> computing = log.computing();
  const std::vector<Log::State> states = log.states();
  std::vector<double> under_way, quiet;
  for (int64_t step = first; step <= log.steps(); ++step) {
    if (states[step] == Log::State::under_way) under_way.push_back(log.seconds[step]);
    if (states[step] == Log::State::quiet) quiet.push_back(log.seconds[step]);
  }
  std::map<int64_t, double> given;
  for (const SyncReport& report : log.reports) {
    given[report.inner_step] += static_cast<double>(report.wire_bytes);
    if (applied_after(report) >= first) trial.waits.push_back(report.reduce_wait.count());
  }
  for (const auto& [step, bytes] : given) trial.peak_bytes = std::max(trial.peak_bytes, bytes);
  trial.step_seconds = mean({log.seconds.begin() + first, log.seconds.end()});
  trial.computing_seconds = mean({computing.begin() + first, computing.end()});
  trial.under_way_seconds = mean(under_way);
  trial.quiet_seconds = mean(quiet);
}

}  // namespace

Trial train(const std::shared_ptr<Communicator>& comm, const Plan& plan, int64_t windows, Steps steps) {
  Model model(0);
  Task task(comm->rank());
  Trial trial;
  Log log;
  DiLoCoOptimizer optimizer(
      torch::optim::AdamW(model.weights, torch::optim::AdamWOptions(1e-3)), comm,
      {.sync_every = plan.sync_every,
       .outer_momentum = 0.6,
       .streaming = {.fragments = fragments_of(plan), .delay = plan.delay},
       .sync = {.start = Start::trust, .on_sync = [&](const SyncReport& report) { log.reports.push_back(report); }}});
  comm->all_reduce_sum(at::zeros({1})).wait();
  double begun = seconds_now();
  for (int64_t step = 1; step <= (windows + 1) * plan.sync_every; ++step) {
    if (steps == Steps::skip) {
      optimizer.skip_step();
    } else {
      optimizer.zero_grad();
      const Tensor loss = task.loss(model);
      loss.backward();
      optimizer.step();
      trial.losses.push_back(loss.item<float>());
    }
    const double now = seconds_now();
    log.seconds.push_back(now - begun);
    begun = now;
  }
  judge(log, plan, trial);
  optimizer.drain();
  return trial;
}

}  // namespace outerloop::bench
