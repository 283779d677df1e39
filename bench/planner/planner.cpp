// How much of the time does a schedule leave for computing, over a link of some bandwidth and latency? The baseline is
// synchronous data parallelism, with its messages hidden in the backward.

#include <c10/util/Exception.h>
#include <outerloop/error.hpp>

#include <cstdio>

#include "curves.hpp"

namespace outerloop::bench {
namespace {

void print_recommendation(const Options& options, const planner::Limits& limits) {
  std::printf("  delay up to %lld: ", static_cast<long long>(limits.delay));
  const auto best = planner::recommend(options.job, options.link, options.target, options.schedule.bits, limits);
  if (!best) {
    std::printf("none up to sync_every %lld\n", static_cast<long long>(limits.sync_every));
    return;
  }
  std::printf("sync_every %lld, fragments %d, delay %lld: %.1f %%\n", static_cast<long long>(best->schedule.sync_every),
              best->schedule.fragments, static_cast<long long>(best->schedule.delay), 100 * best->utilisation);
}

void print_recommendations(const Options& options) {
  std::printf("\nrecommended for %g %% over this link, with the smallest sync_every\n", 100 * options.target);
  planner::Limits limits = options.limits;
  limits.delay = 0;
  print_recommendation(options, limits);
  if (options.limits.delay > 0) print_recommendation(options, options.limits);
}

/// Whether this process is the one that tells.
bool measure(Options& options) {
  const auto comm = connect_from_env();
  if (comm->size() == 1)
    throw BadInput("--probe: a group of one has no link; set RANK and WORLD_SIZE, as torchrun does");
  options.link = planner::probe(*comm, options.probe_seconds);
  options.job.replicas = comm->size();
  return comm->rank() == 0;
}

void plan(Options options) {
  if (options.probe && !measure(options)) return;
  if (!options.json.empty()) write_json(options);
  print_table(options);
  print_recommendations(options);
}

int fail(int exit_code, const std::string& message) {
  std::fprintf(stderr, "bench_planner: %s\n", message.c_str());
  return exit_code;
}

}  // namespace
}  // namespace outerloop::bench

int main(int argc, char** argv) {
  using namespace outerloop::bench;
  try {
    plan(parse_options(argc, argv));
    return 0;
  } catch (const BadInput& error) {
    return fail(2, error.what());
  } catch (const c10::Error& error) {  // RANK or WORLD_SIZE that cannot be
    return fail(2, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
