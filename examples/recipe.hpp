#pragma once

#include <torch/torch.h>
#include <outerloop/outerloop.hpp>

#include "gpt.hpp"
#include "options.hpp"
#include "run_log.hpp"

/// AdamW, inside what the mode asks for.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options,
                                                        std::shared_ptr<outerloop::Communicator> comm, RunLog& log,
                                                        std::function<void(const outerloop::SyncReport&)> on_sync);

/// Linear warm-up over a quarter of the steps, which keeps the replicas together while they would drift fastest; then a
/// cosine down to 2 % of the peak. `step` counts from 1.
double lr_at(int64_t step, const Options& options);
