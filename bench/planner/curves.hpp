#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace outerloop::bench {

struct Method {
  std::string name;
  planner::Schedule schedule;
};

/// Data parallelism, then the asked for schedule with less and less left out of it.
std::vector<Method> methods_of(const Options& options);

/// What was asked, in words: job, and link.
std::string describe(const Options& options);

/// For people: utilisation of each method over bandwidths around the link's, and what each needs for the target.
void print_table(const Options& options);

/// For the picture. Throws BadInput if the file cannot be written.
void write_json(const Options& options);

}  // namespace outerloop::bench
