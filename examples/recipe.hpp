#pragma once

#include <torch/torch.h>
#include <outerloop/outerloop.hpp>

#include "gpt.hpp"
#include "options.hpp"
#include "run_log.hpp"

/// AdamW, or Muon and AdamW, inside what the mode asks for.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options,
                                                        std::shared_ptr<outerloop::Communicator> comm, RunLog& log,
                                                        std::function<void(const outerloop::SyncReport&)> on_sync);

/// In the order of the groups, which is that of an outer optimizer's anchors.
std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);
