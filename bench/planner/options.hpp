#pragma once

#include <outerloop/planner.hpp>

#include <stdexcept>
#include <string>

namespace outerloop::bench {

/// Something the user can put right: one line, exit code 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  planner::Job job;
  planner::Link link{.bits_per_second = 1e9};
  planner::Schedule schedule{.fragments = 8, .delay = 1};
  double gradient_bits = 32;
  double target = 0.9;
  planner::Limits limits;
  bool probe = false;  ///< then the group tells link and replicas
  double probe_seconds = 2;
  std::string json;  ///< file for the curves; empty: none
};

/// Throws BadInput. Prints the help and exits if that is what was asked for.
Options parse_options(int argc, char** argv);

}  // namespace outerloop::bench
