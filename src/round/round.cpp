#include "round/round.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>

namespace outerloop::round {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Adds the time until its end to `sum`.
class Timed {
 public:
  explicit Timed(Seconds& sum) : sum_(sum), begin_(Clock::now()) {}
  Timed(const Timed&) = delete;
  ~Timed() { sum_ += Clock::now() - begin_; }

 private:
  Seconds& sum_;
  Clock::time_point begin_;
};

/// Keeps an exception of `part` in the flight, for the other ranks to hear of.
template <class Part>
void guarded(Flight& flight, const Part& part) {
  if (flight.error) return;
  try {
    part();
  } catch (const std::exception& error) {
    flight.error = std::current_exception();
    flight.text = error.what();
  } catch (...) {
    flight.error = std::current_exception();
    flight.text = "an exception of unknown type";
  }
  if (flight.error) flight.header.vote = Vote::failed;
}

/// The delta, and what this replica says of it.
void offer(Flight& flight, Fragment& fragment, const Terms& terms) {
  SyncReport& report = flight.report;
  const kernels::Summary summary = [&] {
    const Timed timed(report.send);
    return fragment.send(flight.wires, report.weight);
  }();
  report.delta_norm = std::sqrt(summary.sum_squares);
  flight.header.non_finite = summary.non_finite;
  flight.header.fingerprint = summary.fingerprint;
  flight.header.weight = report.weight;
  if (terms.sync.commit_if && !terms.sync.commit_if(report)) flight.header.vote = Vote::abort;
}

/// The outer step with a mean delta that is the sum of these.
void step(Flight& flight, Fragment& fragment, const Terms& terms, std::vector<Term> mean_delta) {
  double sum_squares = 0;
  {
    const Timed timed(flight.report.apply);
    const double factor = add_terms(flight.wires, std::move(mean_delta));
    if (factor == 0) {
      if (terms.sync.on_abort == OnAbort::rollback) fragment.rollback();
      return;
    }
    fragment.apply(flight.wires, terms.rule, factor, terms.streaming.keep_local,
                   terms.sync.on_sync ? &sum_squares : nullptr);
  }
  flight.report.mean_delta_norm = std::sqrt(sum_squares);
}

/// The share that this flight gives back, and the one that is applied instead.
std::vector<Term> exchanged(const Flight& flight, const Share* newest) {
  std::vector<Term> terms{{&flight.share.wires, -flight.share.scale}};
  if (newest) terms.push_back({&newest->wires, newest->scale});
  return terms;
}

SyncReport commit(Flight& flight, Fragment& fragment, const Terms& terms, const Share* newest) {
  SyncReport& report = flight.report;
  std::vector<Term> mean_delta = exchanged(flight, newest);
  mean_delta.insert(mean_delta.begin(), {&flight.wires, 1 / flight.verdict.total_weight});
  step(flight, fragment, terms, std::move(mean_delta));
  fragment.set_rounds(fragment.rounds() + 1);
  report.wire_bytes = all_reduce_bytes(fragment.wire_bytes(), report.replicas);
  report.round = fragment.rounds();
  return report;
}

SyncReport abort(Flight& flight, Fragment& fragment, const Terms& terms, const Share* newest) {
  flight.report.outcome = Outcome::aborted;
  flight.report.reason = flight.verdict.reason;
  step(flight, fragment, terms, exchanged(flight, newest));
  if (flight.error) std::rethrow_exception(flight.error);
  return flight.report;
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

Header header(Talk talk, const Terms& terms, int64_t rounds, int64_t elements) {
  return {.talk = talk,
          .inner_step = terms.inner_step,
          .round = rounds,
          .elements = elements,
          .description = terms.description.digest};
}

Flight send(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad, int replicas) {
  Flight flight{.fragment = number,
                .report = {.inner_step = terms.inner_step,
                           .fragment = static_cast<int64_t>(number),
                           .round = fragment.rounds(),
                           .replicas = replicas,
                           .without_grad = std::move(without_grad)},
                .header = header(Talk::round, terms, fragment.rounds(), fragment.numel()),
                .text = terms.description.text,
                .wires = fragment.take_wires()};
  flight.header.fragment = static_cast<int64_t>(number);
  guarded(flight, [&] {
    if (terms.sync.weight) flight.report.weight = terms.sync.weight();
  });
  guarded(flight, [&] { offer(flight, fragment, terms); });
  return flight;
}

void travel(Flight& flight, Exchange& exchange, OnMismatch on_mismatch) {
  const Timed timed(flight.report.reduce);
  const Meeting meeting = exchange.meet(flight.header, flight.text);
  Verdict& verdict = flight.verdict;
  verdict = decide(meeting.headers, on_mismatch);
  if (!meeting.texts.empty()) {
    if (!verdict.reason.empty()) verdict.reason += ": ";
    verdict.reason += explain(meeting);
  }
  if (verdict.action == Verdict::Action::commit) reduce(flight.wires, exchange);
}

SyncReport land(Flight& flight, Fragment& fragment, Exchange& exchange, const Terms& terms, const Share* newest) {
  switch (flight.verdict.action) {
    case Verdict::Action::disagree:
      if (flight.error) std::rethrow_exception(flight.error);
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
  if (flight.header.vote != Vote::commit || flight.header.non_finite > 0 || !(weight > 0)) return;
  flight.share = {fragment.take_wires(), 1 / (flight.report.replicas * weight)};
  for (size_t i = 0; i < flight.wires.size(); ++i) flight.share.wires[i].copy_(flight.wires[i]);
}

void apply_share(const Share& share, Fragment& fragment, const Terms& terms) {
  Flight alone{.wires = fragment.take_wires()};
  step(alone, fragment, terms, {{&share.wires, share.scale}});
  fragment.give_back(std::move(alone.wires));
}

}  // namespace outerloop::round
