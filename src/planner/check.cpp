#include "planner/check.hpp"

#include <c10/util/Exception.h>

#include <cmath>

namespace outerloop::planner {

void check_positive(const char* name, double value) {
  TORCH_CHECK(value > 0 && std::isfinite(value), name, " must be positive and finite, got ", value);
}

void check_target(double target) { TORCH_CHECK(target > 0 && target < 1, "target must be in (0, 1), got ", target); }

void check_latency(double seconds) {
  TORCH_CHECK(seconds >= 0 && std::isfinite(seconds), "latency_seconds must be >= 0 and finite, got ", seconds);
}

void check_bits(double bits) { check_positive("bits", bits); }

void check(const Job& job) {
  TORCH_CHECK(job.parameters > 0, "parameters must be > 0, got ", job.parameters);
  check_positive("step_seconds", job.step_seconds);
  TORCH_CHECK(job.layers >= 1, "layers must be >= 1, got ", job.layers);
  TORCH_CHECK(job.replicas >= 1, "replicas must be >= 1, got ", job.replicas);
}

void check(const Link& link) {
  TORCH_CHECK(link.bits_per_second > 0, "bits_per_second must be > 0, got ", link.bits_per_second);
  check_latency(link.latency_seconds);
}

void check(const Schedule& schedule, const Job& job) {
  TORCH_CHECK(schedule.fragments >= 1, "fragments must be >= 1, got ", schedule.fragments);
  TORCH_CHECK(schedule.sync_every >= schedule.fragments, "sync_every must be >= fragments, got ", schedule.sync_every,
              " for ", schedule.fragments, " fragments");
  TORCH_CHECK(schedule.delay >= 0, "delay must be >= 0, got ", schedule.delay);
  check_bits(schedule.bits);
  TORCH_CHECK(schedule.sending == Sending::after_step || schedule.fragments <= job.layers,
              "fragments that are sent during backward must be <= layers, got ", schedule.fragments, " for ",
              job.layers, " layers");
}

void check(const Limits& limits) {
  constexpr int64_t most = 1'000'000'000'000'000;
  TORCH_CHECK(limits.sync_every >= 1 && limits.sync_every <= most, "limits.sync_every must be in [1, ", most, "], got ",
              limits.sync_every);
  TORCH_CHECK(limits.fragments >= 1, "limits.fragments must be >= 1, got ", limits.fragments);
  TORCH_CHECK(limits.delay >= 0, "limits.delay must be >= 0, got ", limits.delay);
}

}  // namespace outerloop::planner
