#pragma once

#include <outerloop/outer_loop.hpp>

#include "optimizer/inner.hpp"

namespace outerloop::optimizer {

/// The groups of an acceptable inner optimizer. What is not acceptable is told to the other replicas too: c10::Error
/// here, ConsistencyError there.
const Groups& admit(const std::unique_ptr<Optimizer>& inner, const std::shared_ptr<Communicator>& comm,
                    const std::shared_ptr<const OuterRule>& rule, int64_t sync_every, const Streaming& streaming,
                    const SyncOptions& sync);

/// Throws c10::Error, naming the parameter, if these cannot be trained together, or the plan does not fit them.
void check_parameters(const Groups& groups, const std::vector<std::string>& names, const FragmentPlan& plan);

/// Compared between replicas and with checkpoints.
std::string describe(const std::optional<ErrorFeedback>& feedback);

}  // namespace outerloop::optimizer
