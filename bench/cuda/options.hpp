#pragma once

#include <cstdint>
#include <vector>

namespace outerloop::bench {

struct Case {
  int64_t numel, tensors;
};

struct Options {
  std::vector<Case> cases{{10'000'000, 300}, {100'000'000, 300}, {1'000'000'000, 1}, {1'000'000'000, 300}};
  double seconds = 0;              ///< no case is begun after so many; 0: all are
  double working_set = 1 << 30;    ///< bytes: as many problems in turn as it takes, so that caches do not help
  double batch_milliseconds = 20;  ///< at least so long is what one pair of events times
  bool ours_only = false;          ///< no kernel of libtorch is run: no baselines, results compared on the CPU
};

/// Ends the program where the command line is wrong, or asks for help.
Options parse(int argc, char** argv);

}  // namespace outerloop::bench
