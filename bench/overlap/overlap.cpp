// Over a link so slow that communication takes 80 % of the time of computing: how much of the wait does a delay hide,
// and does the time come out as the planner says? The baselines are the same schedules without throttle, and without
// delay.

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "contest.hpp"
#include "launch.hpp"
#include "model.hpp"
#include "verdict.hpp"

namespace outerloop::bench {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return median(ratios);
}

void print_head(const Options& options, const Results& results) {
  const Contender& whole = results.contenders[0];
  std::printf("2 replicas, %lld parameters, sync_every %lld; losses %.3f to %.3f; medians of %d\n",
              static_cast<long long>(Model::parameters), static_cast<long long>(whole.plan.sync_every),
              whole.pair.losses.front(), whole.pair.losses.back(), options.repetitions);
  std::printf("link by %s: %.1f Mbit/s, %.2f ms; a round's communication is %.0f %% of its window's computing\n",
              options.throttled.empty() ? "token bucket" : options.throttled.c_str(), median(results.mbit),
              1e3 * results.latency_seconds, 100 * median(results.busy));
}

void print_table(const Results& results) {
  std::printf("\n%-22s %31s %30s %12s\n", "", "inner step, ms", "wait of a window, ms", "peak bytes");
  std::printf("%-22s %7s %10s %12s %8s %10s %10s %12s  %s\n", "schedule", "open", "throttled", "as predicted", "all",
              "for link", "hidden, %", "of a step", "losses");
  for (const auto& [name, plan, pair] : results.contenders) {
    std::printf("%-22s %7.2f %10.2f %12.3f %8.2f %10.2f %10.1f %12.0f  %s\n", name.c_str(),
                1e3 * median(pair.open_step), 1e3 * median(pair.step), median_ratio(pair.step, pair.predicted_step),
                1e3 * median(pair.wait), 1e3 * median(pair.link_wait), 100 * median(pair.hidden), pair.peak_bytes,
                pair.same_losses ? "equal" : "DIFFERENT");
  }
}

void judge(const Contender& contender, const Pair& whole) {
  const Pair& pair = contender.pair;
  const double time = median_ratio(pair.step, pair.predicted_step), peak = whole.peak_bytes / pair.peak_bytes;
  std::printf("\n%s\n", contender.name.c_str());
  if (contender.plan.delay > 0) {
    std::printf("  hides %.1f %% of the wait for the link (at least 90): %s\n", 100 * median(pair.hidden),
                verdict(median(pair.hidden) >= 0.9));
  }
  std::printf("  takes %.3f of the time that the planner says (within 0.05 of 1): %s\n", time,
              verdict(std::abs(time - 1) <= 0.05));
  std::printf("  peak bytes of a step are those of the whole / %.3f (%d): %s\n", peak, contender.plan.fragments,
              verdict(std::abs(peak / contender.plan.fragments - 1) < 1e-3));
  std::printf("  losses are those without throttle, bit for bit: %s\n", verdict(pair.same_losses));
}

void print_courier(const Results& results) {
  const double alone = median(results.courier_alone), shared = median(results.courier_shared);
  std::printf("\ncourier: an inner step with a flight under way, against one with none\n");
  std::printf("  %.3f with a core free, the other replica skipping its steps (at most 1.05): %s\n", alone,
              verdict(alone <= 1.05));
  std::printf("  %.3f with both replicas training\n", shared);
}

int replica(const Options& options) {
  try {
    const Results results = hold_contest(options);
    if (!results.tells) return 0;
    print_head(options, results);
    print_table(results);
    for (const Contender& contender : results.contenders) judge(contender, results.contenders[0].pair);
    print_courier(results);
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "bench_overlap: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_overlap: %s\n", error.what());
  }
  return 1;
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop::bench;
  const Options options = parse_options(argc, argv);
  return is_replica() ? replica(options) : launch([&] { return replica(options); });
}
