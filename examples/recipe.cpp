#include "recipe.hpp"

#include "muon.hpp"
#include "wires.hpp"

namespace {

/// The parameters, those that Muon takes first.
torch::OrderedDict<std::string, torch::Tensor> in_groups(const Gpt& model, const Options& options, size_t& matrices) {
  torch::OrderedDict<std::string, torch::Tensor> ordered;
  const auto all = model->named_parameters();
  const auto is_matrix = [&](const auto& item) {
    return options.muon && item.key().starts_with("blocks.") && item.value().dim() == 2;
  };
  for (const auto& item : all) {
    if (is_matrix(item)) ordered.insert(item.key(), item.value());
  }
  matrices = ordered.size();
  for (const auto& item : all) {
    if (!is_matrix(item)) ordered.insert(item.key(), item.value());
  }
  return ordered;
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const std::vector<torch::Tensor>& params, size_t matrices,
                                                    const Options& options) {
  const auto settings = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99}).weight_decay(options.weight_decay);
  if (!options.muon) return std::make_unique<torch::optim::AdamW>(params, settings);
  const auto middle = params.begin() + static_cast<ptrdiff_t>(matrices);
  return std::make_unique<Muon>(std::vector(params.begin(), middle), std::vector(middle, params.end()), settings);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options,
                                                        std::shared_ptr<outerloop::Communicator> comm, RunLog& log,
                                                        std::function<void(const outerloop::SyncReport&)> on_sync) {
  size_t matrices = 0;
  const auto params = in_groups(model, options, matrices);
  auto inner = make_inner(params.values(), matrices, options);
  outerloop::SyncOptions sync{.codec = wires.at(options.wire)(),
                              .start = outerloop::Start::verify,  // all made the same model from the same seed
                              .names = params.keys(),
                              .on_sync = std::move(on_sync),
                              .on_warning = [&log](const std::string& warning) { log.warning(warning); }};
  if (options.feedback != 0) sync.error_feedback = outerloop::ErrorFeedback{.decay = options.feedback};
  switch (options.mode) {
    case Mode::diloco:
      return std::make_unique<outerloop::DiLoCoOptimizer>(
          std::move(inner), comm,
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
          std::move(inner), comm,
          outerloop::LocalSGDOptions{.sync_every = options.sync_every, .sync = std::move(sync)});
    case Mode::ddp:
    case Mode::solo:
      return inner;
  }
  throw std::logic_error("a mode without an optimizer");
}

std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}
