#pragma once

#include <string>

namespace outerloop::bench {

struct Options {
  int repetitions = 9;
  int windows = 3;        ///< of a trial, after the first
  std::string throttled;  ///< network interface of the throttled link; empty: a token bucket, in this program
  double latency_ms = 1;  ///< of the token bucket
};

/// Prints help, or what is wrong, and exits, if that is all there is to do.
Options parse_options(int argc, char** argv);

}  // namespace outerloop::bench
