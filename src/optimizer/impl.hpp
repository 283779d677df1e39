#pragma once

#include <outerloop/outer_loop.hpp>

#include <deque>
#include <optional>
#include <unordered_set>

#include "checkpoint/archive.hpp"
#include "optimizer/inner.hpp"
#include "optimizer/schedule.hpp"
#include "round/courier.hpp"
#include "round/fragments.hpp"
#include "round/pipeline.hpp"
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
  optimizer::Schedule schedule;
  int64_t inner_step = 0;
  bool in_callback = false;
  std::exception_ptr kept = {};  ///< thrown by a callback; goes on when what all replicas do together is over

  round::Description description{""};
  std::optional<round::Fragments> fragments = {};
  std::unordered_set<const void*> met = {};  ///< parameters whose start the replicas have agreed on
  std::deque<round::Flight> flights = {};    ///< rounds between send and apply, in the order of both
  round::Courier courier = {};               ///< goes first, and uses all the others

  void check_no_callback() const;
  void hand_on(const Groups& groups);
  round::Fragments fragments_of(const Groups& groups) const;
  std::optional<round::Fragments> grown_for(const Groups& groups) const;
  void take_up(const Groups& groups, round::Fragments state);
  void agree(const Groups& groups);
  void follow_parameters(const Groups& groups);
  void advance(const Groups& groups);
  void send(size_t fragment, const Groups& groups, bool lands_at_once);
  void depart(round::Flight& flight);
  void give_back(round::Flight flight);
  bool due() const;
  void land(const round::Share* newest = nullptr);
  void land_all();
  void rethrow();
  void wait_for_courier();
  void drop_flights();
  template <class Talk>
  void recovering(const Groups& groups, const Talk& talk);
  void reconnect(std::shared_ptr<Communicator> comm, const Groups& groups);
  round::Terms terms() const { return {*rule, sync, description, streaming, inner_step}; }
  /// Anchors of eager replicas differ; where they are compared, at sync(), it is to make them one.
  OnMismatch on_mismatch() const { return streaming.eager ? OnMismatch::repair : sync.on_mismatch; }
  std::string describe(const Groups& groups, const round::Exchange& with) const;
  checkpoint::Snapshot snapshot(const Groups& groups, const round::Fragments& of) const;
};

}  // namespace outerloop
