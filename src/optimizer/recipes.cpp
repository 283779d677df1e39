#include <outerloop/diloco.hpp>
#include <outerloop/local_sgd.hpp>

#include "round/exchange.hpp"

namespace outerloop {

LocalSGDOptimizer::LocalSGDOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm,
                                     LocalSGDOptions options)
    : OuterLoopOptimizer(std::move(inner), std::move(comm), std::make_shared<Average>(), options.sync_every, {},
                         std::move(options.sync)) {}

DiLoCoOptimizer::DiLoCoOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm,
                                 DiLoCoOptions options)
    : OuterLoopOptimizer(
          std::move(inner), comm,
          round::or_refuse(
              comm,
              [&] { return std::make_shared<Nesterov>(options.outer_lr, options.outer_momentum, options.nesterov); }),
          options.sync_every, options.streaming, std::move(options.sync)) {}

}  // namespace outerloop
