#include "round/round.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>

namespace outerloop::round {

namespace {

/// The outer step with a mean delta that is the sum of these.
void step(Flight& flight, Fragment& fragment, const Terms& terms, std::vector<Term> mean_delta) {
  const Timed timed(flight.report.apply);
  if (flight.wires.empty()) flight.wires = fragment.take_wires();  // its send failed
  double sum_squares = 0;
  const double factor = add_terms(flight.wires, std::move(mean_delta));
  if (factor == 0) {
    if (terms.sync.on_abort == OnAbort::rollback) fragment.rollback();
    return;
  }
  fragment.apply(flight.wires, flight.coded, terms.rule, factor, terms.streaming.keep_local,
                 terms.sync.on_sync ? &sum_squares : nullptr);
  flight.report.mean_delta_norm = std::sqrt(sum_squares);
}

/// The outer step that was taken piece by piece becomes the anchor.
void take_stepped(Flight& flight, Fragment& fragment, const Terms& terms) {
  const Timed timed(flight.report.apply);
  fragment.take(flight.wires, flight.stepped, terms.streaming.keep_local);
  flight.report.mean_delta_norm = std::sqrt(flight.stepped.sum_squares);
}

/// The share that this flight gives back, and the one that is applied instead.
std::vector<Term> exchanged(const Flight& flight, const Share* newest) {
  std::vector<Term> terms{{&flight.share.wires, -flight.share.scale}};
  if (newest) terms.push_back({&newest->wires, newest->scale});
  return terms;
}

SyncReport commit(Flight& flight, Fragment& fragment, const Terms& terms, const Share* newest) {
  keeping(flight.error, [&] {
    if (flight.stepped.whole) {
      take_stepped(flight, fragment, terms);
    } else {
      std::vector<Term> mean_delta = exchanged(flight, newest);
      mean_delta.insert(mean_delta.begin(), {&flight.wires, 1 / flight.verdict.total_weight});
      step(flight, fragment, terms, std::move(mean_delta));
    }
    fragment.keep_residuals(flight.coded, takes_part(flight.report.weight));
    fragment.set_rounds(fragment.rounds() + 1);
  });
  flight.report.round = fragment.rounds();
  return flight.report;
}

SyncReport abort(Flight& flight, Fragment& fragment, const Terms& terms, const Share* newest) {
  flight.report.outcome = Outcome::aborted;
  flight.report.reason = flight.verdict.reason;
  keeping(flight.error, [&] { step(flight, fragment, terms, exchanged(flight, newest)); });
  return flight.report;
}

/// The wires become the mean. A rank that cannot do its part aborts the round on all.
void travel_coded(Flight& flight, Exchange& exchange) {
  std::exception_ptr error;
  const int failed = average(flight.wires, flight.coded, exchange, flight.verdict.weights, error);
  flight.report.wire_bytes += bytes_sent(flight.wires, flight.coded, exchange.size());
  if (failed < 0) {
    flight.verdict.total_weight = 1;
    return;
  }
  if (!flight.error) flight.error = error;
  flight.verdict = {Verdict::Action::abort, c10::str("rank ", failed, " could not average the deltas")};
}

/// All take the majority's state, and this round is held again from there.
SyncReport repair(Flight& flight, Fragment& fragment, Exchange& exchange, const Terms& terms) {
  fragment.take(fragment.state_of(exchange, flight.verdict.root));
  flight.report.reason = flight.verdict.reason;
  guarded(flight, [&] { offer(flight, fragment, terms); });
  {
    const Timed timed(flight.report.reduce_wait);
    travel(flight, exchange, OnMismatch::fail);
  }
  return land(flight, fragment, exchange, terms, nullptr);
}

}  // namespace

Flight send(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
            const Exchange& exchange) {
  Flight flight = prepared(fragment, number, terms, std::move(without_grad), exchange);
  guarded(flight, [&] { offer(flight, fragment, terms); });
  return flight;
}

void travel(Flight& flight, Exchange& exchange, OnMismatch on_mismatch) {
  const Timed timed(flight.report.reduce);
  meet(flight, exchange, on_mismatch);
  if (flight.verdict.action != Verdict::Action::commit) return;
  if (!flight.coded.buckets.empty()) return travel_coded(flight, exchange);
  reduce(flight.wires, exchange);
  flight.report.wire_bytes += bytes_sent(flight.wires, exchange.size());
}

SyncReport land(Flight& flight, Fragment& fragment, Exchange& exchange, const Terms& terms, const Share* newest) {
  switch (flight.verdict.action) {
    case Verdict::Action::disagree:
      throw ConsistencyError(flight.verdict.reason);
    case Verdict::Action::repair:
      return repair(flight, fragment, exchange, terms);
    case Verdict::Action::abort:
      return abort(flight, fragment, terms, newest);
    case Verdict::Action::commit:
      break;
  }
  return commit(flight, fragment, terms, newest);
}

void keep_share(Flight& flight, Fragment& fragment) {
  flight.header.fingerprint = 0;
  const double weight = flight.report.weight;
  if (flight.header.vote != Vote::commit || flight.header.non_finite > 0 || !takes_part(weight)) return;
  guarded(flight, [&] {
    Wires copies = fragment.take_wires();
    for (size_t i = 0; i < flight.wires.size(); ++i) copies[i].copy_(flight.wires[i]);
    fragment.reserve_wires();  // for apply_share, which comes when the others may count on this flight
    flight.share = {std::move(copies), 1 / (flight.report.replicas * weight)};
  });
}

void apply_share(const Share& share, Fragment& fragment, const Terms& terms) {
  Flight alone;
  alone.wires = fragment.take_wires();
  step(alone, fragment, terms, {{&share.wires, share.scale}});
  fragment.give_back(std::move(alone.wires));
}

}  // namespace outerloop::round
