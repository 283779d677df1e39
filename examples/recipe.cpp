#include "recipe.hpp"

#include <cmath>
#include <numbers>

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options,
                                                        std::shared_ptr<outerloop::Communicator> comm, RunLog& log,
                                                        std::function<void(const outerloop::SyncReport&)> on_sync) {
  torch::optim::AdamW adamw(model->parameters(),
                            torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99}).weight_decay(0.1));
  outerloop::SyncOptions sync{.start = outerloop::Start::verify,  // all made the same model from the same seed
                              .names = model->named_parameters().keys(),
                              .on_sync = std::move(on_sync),
                              .on_warning = [&log](const std::string& warning) { log.warning(warning); }};
  switch (options.mode) {
    case Mode::diloco:
      return std::make_unique<outerloop::DiLoCoOptimizer>(
          std::move(adamw), comm,
          outerloop::DiLoCoOptions{.sync_every = options.sync_every,
                                   .outer_lr = options.outer_lr,
                                   .outer_momentum = options.outer_momentum,
                                   .streaming = {.fragments = outerloop::FragmentPlan::strided(options.fragments),
                                                 .delay = options.delay,
                                                 .keep_local = options.keep_local,
                                                 .eager = options.eager},
                                   .sync = std::move(sync)});
    case Mode::local_sgd:
      return std::make_unique<outerloop::LocalSGDOptimizer>(
          std::move(adamw), comm,
          outerloop::LocalSGDOptions{.sync_every = options.sync_every, .sync = std::move(sync)});
    case Mode::ddp:
    case Mode::solo:
      return std::make_unique<torch::optim::AdamW>(std::move(adamw));
  }
  throw std::logic_error("a mode without an optimizer");
}

double lr_at(int64_t step, const Options& options) {
  const double done = static_cast<double>(step) / static_cast<double>(options.steps), warm_up = 0.25, floor = 0.02;
  if (done <= warm_up) return options.lr * done / warm_up;
  const double cosine = std::cos(std::numbers::pi * (done - warm_up) / (1 - warm_up));
  return options.lr * (floor + (1 - floor) * (1 + cosine) / 2);
}
