#include "options.hpp"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

namespace outerloop::bench {

namespace {

constexpr int most = 1'000'000'000;

/// What the user says in units of their own.
struct Units {
  double parameters = 0, step_milliseconds = 0, mbit = 1000, latency_milliseconds = 0, target_percent = 90;
};

/// CLI11's own are for numbers of any size, and say so in 300 digits.
CLI::Validator number(const char* what, bool (*fine)(double)) {
  const auto check = [what, fine](const std::string& text) {
    double value = 0;
    return CLI::detail::lexical_cast(text, value) && fine(value) ? "" : c10::str("must be ", what, ", got ", text);
  };
  return CLI::Validator(check, what, what);
}
const CLI::Validator positive = number("positive and finite", [](double x) { return x > 0 && std::isfinite(x); });
const CLI::Validator not_negative = number(">= 0 and finite", [](double x) { return x >= 0 && std::isfinite(x); });
const CLI::Validator percent = number("between 0 and 100", [](double x) { return x > 0 && x < 100; });
const CLI::Validator count =
    number("a whole number from 1 to 1e15", [](double x) { return x >= 1 && x <= 1e15 && x == std::floor(x); });

void describe_job(CLI::App& app, Options& options, Units& units) {
  app.add_option("--params", units.parameters, "Parameters that are trained, 1e9 for example")
      ->required()
      ->check(count);
  app.add_option("--step-ms", units.step_milliseconds, "Milliseconds of one inner step, without communication")
      ->required()
      ->check(positive);
  app.add_option("--layers", options.job.layers, "Layers of the model, which are at most as many fragments")
      ->default_val(24)
      ->check(CLI::Range(1, most));
}

void describe_link(CLI::App& app, Options& options, Units& units) {
  auto* replicas = app.add_option("--replicas", options.job.replicas, "Replicas")->check(CLI::Range(1, most));
  auto* mbit = app.add_option("--mbit", units.mbit, "Mbit/s that a replica sends")->check(positive);
  auto* latency = app.add_option("--latency-ms", units.latency_milliseconds, "Milliseconds of a tiny all-reduce")
                      ->check(not_negative);
  app.add_flag("--probe", options.probe,
               "Measure them: one process per replica, started as torchrun does; rank 0 tells the result")
      ->excludes(replicas, mbit, latency);
  app.add_option("--seconds", options.probe_seconds, "That this may take")->check(positive);
}

void describe_schedule(CLI::App& app, Options& options, Units& units) {
  app.add_option("--sync-every", options.schedule.sync_every, "Inner steps between rounds")->check(CLI::Range(1, most));
  app.add_option("--fragments", options.schedule.fragments, "Fragments of streaming")->check(CLI::Range(1, most));
  app.add_option("--delay", options.schedule.delay, "Inner steps from send to apply")->check(CLI::Range(0, most));
  app.add_option("--bits", options.schedule.bits, "Bits of the wire per parameter")->check(positive);
  app.add_option("--gradient-bits", options.gradient_bits, "Bits per parameter in data parallelism")->check(positive);
  app.add_option("--target", units.target_percent, "Utilisation to recommend a schedule for, %")->check(percent);
  app.add_option("--max-delay", options.limits.delay, "Longest delay that may be recommended")
      ->check(CLI::Range(0, most));
  app.add_flag_callback(
      "--during-backward", [&options] { options.schedule.sending = planner::Sending::during_backward; },
      "Fragments are sent layer by layer while the backward goes on, not as the optimizers here do");
  app.add_option("--json", options.json, "File for the curves, to be drawn by scripts/plot_planner.py");
}

void adopt(const Units& units, Options& options) {
  options.job.parameters = std::llround(units.parameters);
  options.job.step_seconds = units.step_milliseconds / 1e3;
  options.link = {units.mbit * 1e6, units.latency_milliseconds / 1e3};
  options.target = units.target_percent / 100;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  Units units;
  CLI::App app("Simulates the compute utilisation of a schedule over links of any bandwidth, and recommends one.",
               "bench_planner");
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  describe_job(app, options, units);
  describe_link(app, options, units);
  describe_schedule(app, options, units);
  try {
    app.parse(argc, argv);
    adopt(units, options);
    // The library's own checks, before anything is measured or told.
    planner::bandwidth_needed(options.job, options.link.latency_seconds, options.schedule, options.target);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw BadInput(error.what());
  } catch (const c10::Error& error) {
    throw BadInput(error.what_without_backtrace());
  }
  return options;
}

}  // namespace outerloop::bench
