#include <outerloop/outerloop.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"
#include "support/ranks.hpp"

/// An outer lr above its limit is told of at construction.

namespace outerloop::testing {
namespace {

/// What is told of these options in a group of `replicas`; with Nesterov's limits of momentum 0.9.
std::vector<std::string> warnings(double outer_lr, Streaming streaming = {}, int replicas = 1) {
  return run_ranks(replicas, [&](std::shared_ptr<Communicator> comm) {
    std::string told;
    const DiLoCoOptions options{.sync_every = 4,
                                .outer_lr = outer_lr,
                                .streaming = streaming,
                                .sync = {.on_warning = [&](const std::string& warning) { told += warning; }}};
    DiLoCoOptimizer(torch::optim::SGD({leaf(eighths({3}, 0))}, 0.5), comm, options);
    return told;
  });
}

TEST(Stability, AboveTheLimitIsToldWithTheLimitAndTheLargestSafeLr) {
  const std::string told = warnings(0.7, {.delay = 4})[0];
  for (const std::string words :
       {"outer_lr 0.7", "0.25", "outer_momentum 0.9", "1 late", "largest safe outer_lr is 0.25"}) {
    EXPECT_NE(told.find(words), std::string::npos) << told << "\ndoes not say " << words;
  }
  const double safe = std::stod(told.substr(told.rfind(' ')));
  EXPECT_GT(safe, 0.25);
  EXPECT_LE(safe, largest_stable_lr({.momentum = 0.9, .rounds_late = 1}));
  EXPECT_EQ(warnings(safe, {.delay = 4})[0], "");
}

TEST(Stability, LimitIsThatOfDelayEagerAndReplicas) {
  EXPECT_EQ(warnings(1.3)[0], "");
  EXPECT_NE(warnings(1.4)[0], "");
  EXPECT_EQ(warnings(1.3, {.delay = 3})[0], "") << "within the window";
  EXPECT_EQ(warnings(0.08, {.delay = 11})[0], "");
  EXPECT_NE(warnings(0.09, {.delay = 11})[0], "");
  for (const std::string& told : warnings(0.76, {.delay = 4, .eager = true}, 2)) EXPECT_EQ(told, "");
  for (const std::string& told : warnings(0.78, {.delay = 4, .eager = true}, 2)) {
    EXPECT_NE(told.find("2 eager replicas"), std::string::npos) << told;
  }
}

TEST(Stability, StrictRefuses) {
  const DiLoCoOptions options{.outer_lr = 1.5, .sync = {.strict = true}};
  EXPECT_TRUE(
      is(thrown_by([&] { DiLoCoOptimizer(torch::optim::SGD({leaf(eighths({3}, 0))}, 0.5), connect_alone(), options); }),
         "c10::Error", {"outer_lr 1.5", "limit", "1.35"}));
}

TEST(Stability, ExceptionOfTheCallbackReachesTheOtherReplicas) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    DiLoCoOptions options{.outer_lr = 1.5};
    if (comm->rank() == 1) options.sync.on_warning = [](const std::string&) { throw std::runtime_error("no"); };
    EXPECT_TRUE(is(thrown_by([&] { DiLoCoOptimizer(torch::optim::SGD({leaf(eighths({3}, 0))}, 0.5), comm, options); }),
                   comm->rank() == 1 ? "std::exception" : "ConsistencyError", {"no"}));
  });
}

}  // namespace
}  // namespace outerloop::testing
