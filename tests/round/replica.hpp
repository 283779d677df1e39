#pragma once

#include <outerloop/outerloop.hpp>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

namespace outerloop::testing {

/// A replica with one parameter, SGD with lr 1 and gradients given by hand: a step by g moves the parameter by -g, so
/// that the delta of a round is the sum of the steps since the one before. Records every report.
struct Replica {
  explicit Replica(const std::shared_ptr<Communicator>& comm, DiLoCoOptions options = {.sync_every = 1},
                   const Tensor& start = torch::zeros({3}))
      : param(parameter(start)), optimizer(torch::optim::SGD({param}, 1.0), comm, recording(std::move(options))) {}
  Replica(const Replica&) = delete;

  void step(double gradient) {
    param.mutable_grad() = torch::full_like(param, gradient).detach();
    optimizer.step();
  }
  Tensor anchor() const { return optimizer.anchors().at(0); }
  /// What every rank should see alike.
  struct Outcomes {
    std::vector<SyncReport> reports;
    Tensor param, anchor;
  };
  Outcomes outcomes() const { return {reports, param.detach().clone(), anchor()}; }

  Tensor param;
  std::vector<SyncReport> reports;
  DiLoCoOptimizer optimizer;

 private:
  DiLoCoOptions recording(DiLoCoOptions options) {
    options.sync.on_sync = [this, next = options.sync.on_sync](const SyncReport& report) {
      reports.push_back(report);
      if (next) next(report);
    };
    return options;
  }
};

/// Rounds average (outer lr 1, no momentum) unless said otherwise: expected values are plain means.
inline DiLoCoOptions averaging(SyncOptions sync = {}, int64_t sync_every = 1) {
  return {.sync_every = sync_every, .outer_lr = 1, .outer_momentum = 0, .sync = std::move(sync)};
}

/// Outer momentum, so that a velocity which is not what it was shows in the next round.
inline DiLoCoOptions with_momentum(SyncOptions sync = {}) {
  return {.sync_every = 2, .outer_lr = 0.5, .outer_momentum = 0.5, .sync = std::move(sync)};
}
inline double gradient(int rank, int step) { return (rank + 1) * 0.5 + step; }

/// body() throws Error; returns its message.
template <class Error, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline ::testing::AssertionResult says(const std::string& text, const std::string& words) {
  if (text.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" does not say \"" << words << '"';
}

/// All ranks saw the same outcomes for the same reasons, and hold the same anchors.
inline void expect_same_outcomes(const std::vector<Replica::Outcomes>& all) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    EXPECT_TRUE(same_bits(all[rank].anchor, all[0].anchor)) << "anchor of rank " << rank;
    ASSERT_EQ(all[rank].reports.size(), all[0].reports.size()) << "rank " << rank;
    for (size_t i = 0; i < all[0].reports.size(); ++i) {
      EXPECT_EQ(all[rank].reports[i].outcome, all[0].reports[i].outcome) << "rank " << rank << ", round " << i;
      EXPECT_EQ(all[rank].reports[i].reason, all[0].reports[i].reason) << "rank " << rank << ", round " << i;
      EXPECT_EQ(all[rank].reports[i].round, all[0].reports[i].round) << "rank " << rank << ", round " << i;
    }
  }
}

}  // namespace outerloop::testing
