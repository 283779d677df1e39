#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <outerloop/diloco.hpp>
#include <outerloop/local_sgd.hpp>

#include "planner/link.hpp"
#include "support/ranks.hpp"

/// The optimizers make the messages that the planner counts: their own collectives, each as long as a link would take
/// for it, add up to what it says.

namespace outerloop::planner {
namespace {

const Link link{.bits_per_second = 1e6, .latency_seconds = 0.01};
constexpr double step_seconds = 0.05;
constexpr int64_t numel = 1000, sync_every = 3, rounds = 4;

/// Utilisation on every rank, by a clock that only inner steps and the link move.
template <class Optimizer, class Options>
std::vector<double> utilisation_of(int size, const Options& options) {
  return testing::run_ranks(size, [&](const std::shared_ptr<Communicator>& group) {
    double waited = 0;
    const auto comm = behind(link, group, [&](double seconds) { waited += seconds; });
    const std::vector<Tensor> params{at::ones({numel}).requires_grad_()};
    Optimizer optimizer(torch::optim::SGD(params, 0.1), comm, options);
    waited = 0;  // construction is over
    for (int64_t step = 0; step < rounds * sync_every; ++step) optimizer.step();
    const double computed = rounds * sync_every * step_seconds;
    return computed / (computed + waited);
  });
}

TEST(Optimizers, WaitAsThePlannerSays) {
  for (const int size : {2, 3}) {
    const Job job{.parameters = numel, .step_seconds = step_seconds, .replicas = size};
    const double expected = utilisation(job, link, {.sync_every = sync_every});
    EXPECT_LT(expected, 0.8);  // there is something to be wrong about
    for (const double found : utilisation_of<DiLoCoOptimizer>(size, DiLoCoOptions{.sync_every = sync_every})) {
      EXPECT_NEAR(found, expected, 1e-9);
    }
    for (const double found : utilisation_of<LocalSGDOptimizer>(size, LocalSGDOptions{.sync_every = sync_every})) {
      EXPECT_NEAR(found, expected, 1e-9);
    }
  }
}

}  // namespace
}  // namespace outerloop::planner
