#pragma once

#include <outerloop/planner.hpp>

/// What the planner refuses, each with name and value, and what it takes for the target.

namespace outerloop::planner {

void check(const Job& job);
void check(const Link& link);
void check(const Schedule& schedule, const Job& job);
void check(const Limits& limits);
void check_target(double target);
void check_latency(double seconds);
void check_bits(double bits);

/// Positive and finite.
void check_positive(const char* name, double value);

/// Whether a utilisation is the target, to nine digits, or more: where both are the same number, rounding must not
/// decide.
inline bool reaches(double utilisation, double target) { return utilisation >= target - 1e-9; }

}  // namespace outerloop::planner
