#include "round/flight.hpp"

#include <cmath>

namespace outerloop::round {

Header header(Talk talk, const Terms& terms, int64_t rounds, int64_t elements) {
  return {.talk = talk,
          .inner_step = terms.inner_step,
          .round = rounds,
          .elements = elements,
          .description = terms.description.digest};
}

Flight prepared(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
                const Exchange& exchange) {
  Flight flight{.fragment = number,
                .report = {.inner_step = terms.inner_step,
                           .fragment = static_cast<int64_t>(number),
                           .round = fragment.rounds(),
                           .replicas = exchange.size(),
                           .without_grad = std::move(without_grad)},
                .header = header(Talk::round, terms, fragment.rounds(), fragment.numel()),
                .text = terms.description.text};
  flight.header.fragment = static_cast<int64_t>(number);
  guarded(flight, [&] {
    flight.wires = fragment.take_wires();
    flight.coded = fragment.take_coded(exchange);
    flight.coded.key = draws_of({terms.inner_step, fragment.rounds(), static_cast<int64_t>(number), exchange.rank()});
    if (terms.sync.weight) flight.report.weight = terms.sync.weight();
    flight.header.weight = flight.report.weight;
  });
  return flight;
}

void offer(Flight& flight, Fragment& fragment, const Terms& terms) {
  const kernels::Summary delta = [&] {
    const Timed timed(flight.report.send);
    const double weight = flight.report.weight;
    return flight.coded.buckets.empty() ? fragment.send(flight.wires, weight)
                                        : fragment.send(flight.wires, flight.coded, weight);
  }();
  say(flight, delta, terms);
}

void say(Flight& flight, const kernels::Summary& delta, const Terms& terms) {
  flight.report.delta_norm = std::sqrt(delta.sum_squares);
  flight.header.non_finite = delta.non_finite;
  flight.header.fingerprint = delta.fingerprint;
  if (terms.sync.commit_if && !terms.sync.commit_if(flight.report)) flight.header.vote = Vote::abort;
}

void meet(Flight& flight, Exchange& exchange, OnMismatch on_mismatch) {
  const Meeting meeting = exchange.meet(flight.header, flight.text);
  Verdict& verdict = flight.verdict;
  verdict = decide(meeting.headers, on_mismatch);
  if (meeting.texts.empty()) return;
  if (!verdict.reason.empty()) verdict.reason += ": ";
  verdict.reason += explain(meeting);
}

}  // namespace outerloop::round
