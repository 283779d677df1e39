#include "curves.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace outerloop::bench {

namespace {

/// From a thousandth of the link's bandwidth to a thousand times as much, in equal ratios.
std::vector<double> bandwidths(double around, int per_decade) {
  std::vector<double> all;
  for (int point = -3 * per_decade; point <= 3 * per_decade; ++point) {
    all.push_back(around * std::pow(10, static_cast<double>(point) / per_decade));
  }
  return all;
}

double percent(const Options& options, const Method& method, double bandwidth) {
  return 100 * planner::utilisation(options.job, {bandwidth, options.link.latency_seconds}, method.schedule);
}

}  // namespace

std::vector<Method> methods_of(const Options& options) {
  planner::Schedule whole = options.schedule, at_once = options.schedule;
  whole.fragments = 1;
  whole.delay = at_once.delay = 0;
  return {{"data parallel", planner::data_parallel(options.gradient_bits)},
          {"DiLoCo", whole},
          {c10::str(at_once.fragments, " fragments"), at_once},
          {c10::str("and delay ", options.schedule.delay), options.schedule}};
}

std::string describe(const Options& options) {
  return c10::str(static_cast<double>(options.job.parameters), " parameters in ", options.job.layers, " layers, ",
                  options.job.replicas, " replicas, steps of ", 1e3 * options.job.step_seconds, " ms, a round every ",
                  options.schedule.sync_every, "\nlink of ", options.link.bits_per_second / 1e6, " Mbit/s, latency ",
                  1e3 * options.link.latency_seconds, " ms; ", options.schedule.bits,
                  " bits per parameter on the wire, ", options.gradient_bits, " in gradients");
}

void print_table(const Options& options) {
  const auto methods = methods_of(options);
  std::printf("%s\n\nutilisation, %%\n%-12s", describe(options).c_str(), "Mbit/s");
  for (const Method& method : methods) std::printf(" %15s", method.name.c_str());
  for (const double bandwidth : bandwidths(options.link.bits_per_second, 3)) {
    std::printf("\n%-12.4g", bandwidth / 1e6);
    for (const Method& method : methods) std::printf(" %15.1f", percent(options, method, bandwidth));
  }
  std::printf("\nMbit/s needed for %g %%\n%-12s", 100 * options.target, "");
  for (const Method& method : methods) {
    std::printf(
        " %15.4g",
        planner::bandwidth_needed(options.job, options.link.latency_seconds, method.schedule, options.target) / 1e6);
  }
  std::printf("\n");
}

void write_json(const Options& options) {
  nlohmann::json picture{{"title", describe(options)},
                         {"target_percent", 100 * options.target},
                         {"mbit", options.link.bits_per_second / 1e6}};
  for (const Method& method : methods_of(options)) {
    nlohmann::json curve{{"name", method.name}};
    for (const double bandwidth : bandwidths(options.link.bits_per_second, 40)) {
      curve["mbit"].push_back(bandwidth / 1e6);
      curve["percent"].push_back(percent(options, method, bandwidth));
    }
    picture["curves"].push_back(curve);
  }
  std::ofstream file(options.json);
  file << picture.dump(1) << std::endl;
  if (!file) throw BadInput("--json " + options.json + ": cannot be written");
}

}  // namespace outerloop::bench
