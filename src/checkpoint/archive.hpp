#pragma once

#include <torch/optim/optimizer.h>
#include <outerloop/error.hpp>
#include <outerloop/outer_rule.hpp>

#include <string>
#include <vector>

#include "codec/residuals.hpp"

namespace outerloop::checkpoint {

/// What torch::save keeps of an optimizer besides the inner one.
struct Snapshot {
  std::string inner_type;
  std::string rule;        ///< the outer rule, described
  std::string fragments;   ///< the plan, described
  std::string parameters;  ///< a line each: name, type, shape
  std::string feedback;    ///< error feedback, described
  int64_t inner_step = 0;
  std::vector<OuterState> states;           ///< one per bucket, fragment by fragment
  std::vector<codec::Residuals> residuals;  ///< of the same
};

void write(torch::serialize::OutputArchive& archive, const Snapshot& snapshot, const torch::optim::Optimizer& inner);

/// Throws CheckpointError if the archive holds something else or is damaged.
Snapshot read(torch::serialize::InputArchive& archive);

/// Throws CheckpointError, naming the first difference, unless `saved` fits where `present` is.
void check_fits(const Snapshot& saved, const Snapshot& present);

/// Replaces options and state of `inner` by the archive's; throws CheckpointError and leaves both as they were if it
/// cannot.
void read_inner(torch::serialize::InputArchive& archive, torch::optim::Optimizer& inner);

}  // namespace outerloop::checkpoint
