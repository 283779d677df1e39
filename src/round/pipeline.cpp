#include "round/pipeline.hpp"

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "outer/recurrence.hpp"

namespace outerloop::round {

namespace {

/// The pieces of one flight, in order.
class Pipeline {
 public:
  Pipeline(Flight& flight, Fragment& fragment, std::vector<Piece>& pieces, Exchange& exchange, const Terms& terms)
      : flight_(flight),
        fragment_(fragment),
        exchange_(exchange),
        step_(fused_step(*recurrence(terms.rule), 1 / flight.verdict.total_weight, terms.streaming.keep_local)),
        wants_norm_(terms.sync.on_sync != nullptr),
        most_under_way_(2 * exchange.group()->lanes().size()),
        pieces_(pieces),
        sums_(pieces.size()) {}

  /// All of them; some arrive and are stepped meanwhile.
  kernels::Summary send() {
    kernels::Summary delta;
    for (size_t piece = 0; piece < pieces_.size(); ++piece) {
      if (piece >= most_under_way_) land(piece - most_under_way_);
      form(piece, delta);
    }
    return delta;
  }

  /// Those that are left. They are stepped if the round commits.
  void land_all() {
    while (landed_ < pieces_.size()) land(landed_);
  }

 private:
  void form(size_t number, kernels::Summary& delta) {
    Piece& piece = pieces_[number];
    guarded(flight_, [&] {
      const Timed timed(flight_.report.send);
      join(delta, fragment_.send(piece, flight_.wires, flight_.report.weight));
    });
    sums_[number] = reduce(piece.of(flight_.wires[piece.bucket]), number, exchange_);
  }

  void land(size_t number) {
    {
      RECORD_FUNCTION("outerloop::reduce", {});
      const Timed timed(flight_.report.reduce_wait);
      sums_[number].wait();
    }
    landed_ = number + 1;
    if (flight_.verdict.action != Verdict::Action::commit) return;
    guarded(flight_, [&] {
      const Timed timed(flight_.report.apply);
      fragment_.step(pieces_[number], flight_.wires, flight_.stepped, step_, wants_norm_);
    });
  }

  Flight& flight_;
  Fragment& fragment_;
  Exchange& exchange_;
  const kernels::Step step_;
  const bool wants_norm_;
  const size_t most_under_way_;  ///< for each lane a piece that travels and one that is next
  std::vector<Piece>& pieces_;
  std::vector<Pending> sums_;
  size_t landed_ = 0;
};

}  // namespace

bool pipelined(const Fragment& fragment, Exchange& exchange, const OuterRule& rule) {
  const auto fits = [&](const Bucket& bucket) {
    const at::Device device = bucket.state.anchor.device();
    return bucket.params.device() == device && !exchange.from(device).lanes().empty();
  };
  return exchange.size() > 1 && !fragment.coded() && recurrence(rule) &&
         std::all_of(fragment.buckets().begin(), fragment.buckets().end(), fits);
}

Flight pipeline(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
                Exchange& exchange, OnMismatch on_mismatch) {
  Flight flight = prepared(fragment, number, terms, std::move(without_grad), exchange);
  flight.header.talk = Talk::pieces;
  flight.travelled = true;
  auto on_throw = c10::make_scope_exit([&] {
    fragment.give_back(std::move(flight.wires));
    fragment.give_back(std::move(flight.stepped.velocities));
  });
  const auto meet_in_time = [&] {
    const Timed timed(flight.report.reduce_wait);
    meet(flight, exchange, on_mismatch);
  };
  // What could fail on this rank alone comes before all have agreed to send.
  std::vector<Piece>* pieces = nullptr;
  guarded(flight, [&] {
    pieces = &fragment.pieces();
    flight.stepped.velocities = fragment.take_velocities();
  });
  const auto begin = std::chrono::steady_clock::now();
  meet_in_time();
  if (flight.verdict.action != Verdict::Action::commit) {
    flight.report.reduce = flight.report.reduce_wait;
    guarded(flight, [&] { offer(flight, fragment, terms); });
    on_throw.release();
    return flight;
  }
  Pipeline pipeline(flight, fragment, *pieces, exchange, terms);
  const kernels::Summary delta = pipeline.send();
  flight.report.wire_bytes = bytes_sent(flight.wires, exchange.size());
  guarded(flight, [&] { say(flight, delta, terms); });
  flight.header.talk = Talk::close;
  meet_in_time();
  pipeline.land_all();
  flight.stepped.whole = flight.verdict.action == Verdict::Action::commit;
  if (flight.stepped.whole && flight.error) {
    throw CommError(c10::str("rank ", exchange.rank(), " failed when all had agreed to commit: ", flight.text));
  }
  flight.report.reduce = std::chrono::steady_clock::now() - begin;
  on_throw.release();
  return flight;
}

}  // namespace outerloop::round
