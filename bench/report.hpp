#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "verdict.hpp"

/// What every bench here does alike: time contenders in turn, in the same run, and end with their ratios.

namespace outerloop::bench {

/// Median seconds per call, by the name a contender was added with.
using Medians = std::map<std::string, double>;

/// Adds a contender. Only `body` is timed; `prepare` runs before each call of it. `bytes` is what one call moves.
inline void contender(const std::string& name, int64_t bytes, int64_t calls, std::function<void()> prepare,
                      std::function<void()> body) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 for (auto _ : state) {
                                   prepare();
                                   const auto start = std::chrono::steady_clock::now();
                                   body();
                                   const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
                                   state.SetIterationTime(time.count());
                                 }
                                 if (bytes > 0) state.SetBytesProcessed(state.iterations() * bytes);
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(calls)
      ->Repetitions(9)
      ->ReportAggregatesOnly();
}

/// Shows what the console reporter shows, and keeps the medians.
class Reporter final : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.aggregate_name != "median") continue;
      medians[run.run_name.function_name] = run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
    }
    ConsoleReporter::ReportRuns(runs);
  }
  Medians medians;
};

/// Runs all contenders, repetitions of one interleaved with those of the others, so that a busy moment of the machine
/// hits all alike; then `summary`.
inline int run(int argc, char** argv, const std::function<void(const Medians&)>& summary) {
  std::string interleave = "--benchmark_enable_random_interleaving=true";
  std::vector<char*> args(argv, argv + argc);
  args.insert(args.begin() + 1, interleave.data());
  int count = static_cast<int>(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  std::printf("\n");
  summary(reporter.medians);
  return 0;
}

}  // namespace outerloop::bench
