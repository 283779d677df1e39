#pragma once

#include <outerloop/outer_loop.hpp>

#include <optional>
#include <unordered_set>

#include "checkpoint/archive.hpp"
#include "optimizer/inner.hpp"
#include "round/round.hpp"

namespace outerloop {

using optimizer::Groups;

struct OuterLoopOptimizer::Impl {
  std::unique_ptr<Optimizer> inner;
  std::shared_ptr<const OuterRule> rule;
  int64_t sync_every;
  Streaming streaming;
  SyncOptions sync;
  round::Exchange exchange;
  int64_t inner_step = 0;
  bool in_round = false;

  round::Description description{""};
  std::optional<round::Fragment> fragment = {};
  std::unordered_set<const void*> met = {};  ///< parameters whose start the replicas have agreed on

  void hand_on(const Groups& groups);
  round::Fragment fragment_of(const Groups& groups) const;
  void agree(const Groups& groups);
  void follow_parameters(const Groups& groups);
  void advance(const Groups& groups);
  void run_round(const Groups& groups);
  template <class Talk>
  void recovering(const Talk& talk);
  void reconnect(std::shared_ptr<Communicator> comm);
  round::Terms terms() const { return {*rule, sync, description, streaming.keep_local, inner_step}; }
  std::string describe(const Groups& groups) const;
  checkpoint::Snapshot snapshot(const Groups& groups, const round::Fragment& of) const;
};

}  // namespace outerloop
