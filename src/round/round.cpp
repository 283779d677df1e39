#include "round/round.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <exception>
#include <optional>

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

/// This replica's part of a round up to the exchange of headers.
struct Offer {
  Header header;
  std::exception_ptr error;
  std::string text;  ///< the error's, or else the description
};

void send(Offer& offer, Fragment& fragment, const Terms& terms, SyncReport& report) {
  const kernels::Summary summary = [&] {
    const Timed timed(report.send);
    return fragment.send(report.weight);
  }();
  report.delta_norm = std::sqrt(summary.sum_squares);
  offer.header.non_finite = summary.non_finite;
  offer.header.fingerprint = summary.fingerprint;
  offer.header.weight = report.weight;
  if (terms.sync.commit_if && !terms.sync.commit_if(report)) offer.header.vote = Vote::abort;
}

/// Keeps an exception of `part` in the offer, for the other ranks to hear of.
template <class Part>
void guarded(Offer& offer, const Part& part) {
  if (offer.error) return;
  try {
    part();
  } catch (const std::exception& error) {
    offer.error = std::current_exception();
    offer.text = error.what();
  } catch (...) {
    offer.error = std::current_exception();
    offer.text = "an exception of unknown type";
  }
  if (offer.error) offer.header.vote = Vote::failed;
}

void commit(Fragment& fragment, Exchange& exchange, const Terms& terms, double total_weight, SyncReport& report) {
  {
    const Timed timed(report.reduce_wait);
    fragment.reduce(exchange);
  }
  const Timed timed(report.apply);
  double sum_squares = 0;
  fragment.apply(terms.rule, total_weight, terms.keep_local, terms.sync.on_sync ? &sum_squares : nullptr);
  report.mean_delta_norm = std::sqrt(sum_squares);
  report.wire_bytes = all_reduce_bytes(fragment.wire_bytes(), exchange.size());
  report.round = fragment.rounds();
}

void abort(Fragment& fragment, const Terms& terms, SyncReport& report) {
  report.outcome = Outcome::aborted;
  if (terms.sync.on_abort == OnAbort::rollback) fragment.rollback();
}

}  // namespace

Header header(Talk talk, const Fragment& fragment, const Terms& terms) {
  return {.talk = talk,
          .inner_step = terms.inner_step,
          .round = fragment.rounds(),
          .elements = fragment.numel(),
          .description = terms.description.digest};
}

SyncReport run(Fragment& fragment, Exchange& exchange, const Terms& terms, std::vector<int64_t> without_grad) {
  SyncReport report{.inner_step = terms.inner_step,
                    .round = fragment.rounds(),
                    .replicas = exchange.size(),
                    .without_grad = std::move(without_grad)};
  Offer offer{header(Talk::round, fragment, terms), nullptr, terms.description.text};
  guarded(offer, [&] {
    if (terms.sync.weight) report.weight = terms.sync.weight();
  });
  for (bool repaired = false;; repaired = true) {
    guarded(offer, [&] { send(offer, fragment, terms, report); });
    const Meeting meeting = [&] {
      const Timed timed(report.reduce_wait);
      return exchange.meet(offer.header, offer.text);
    }();
    const Verdict verdict = decide(meeting.headers, repaired ? OnMismatch::fail : terms.sync.on_mismatch);
    switch (verdict.action) {
      case Verdict::Action::disagree:
        if (offer.error) std::rethrow_exception(offer.error);
        throw ConsistencyError(meeting.texts.empty() ? verdict.reason
                                                     : c10::str(verdict.reason, ": ", explain(meeting)));
      case Verdict::Action::repair:
        fragment.broadcast_state(exchange, verdict.root);
        report.reason = verdict.reason;
        continue;
      case Verdict::Action::abort:
        report.reason = meeting.texts.empty() ? verdict.reason : explain(meeting);
        abort(fragment, terms, report);
        if (offer.error) std::rethrow_exception(offer.error);
        return report;
      case Verdict::Action::commit:
        commit(fragment, exchange, terms, verdict.total_weight, report);
        return report;
    }
  }
}

}  // namespace outerloop::round
