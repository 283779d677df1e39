#include <c10/util/ScopeExit.h>

#include <chrono>

#include "optimizer/impl.hpp"

/// Rounds between send and apply: landed in the order in which they were sent.

namespace outerloop {

/// Anchors of eager replicas differ, which sync() hears before it sends the whole, and after it has sent pieces.
void OuterLoopOptimizer::Impl::send(size_t fragment, const Groups& groups, bool lands_at_once) {
  if (!fragments->holds(optimizer::trainable(groups))) follow_parameters(groups);
  in_callback = true;
  const auto over = c10::make_scope_exit([this] { in_callback = false; });
  round::Fragment& sent = (*fragments)[fragment];
  flights.push_back(
      lands_at_once && !streaming.eager && round::pipelined(sent, exchange, *rule)
          ? round::pipeline(sent, fragment, terms(), optimizer::without_grad(groups), exchange, on_mismatch())
          : round::send(sent, fragment, terms(), optimizer::without_grad(groups), exchange));
}

/// The courier takes it from here.
void OuterLoopOptimizer::Impl::depart(round::Flight& flight) {
  std::vector<at::Device> devices{exchange.group()->device()};
  for (const Tensor& wire : flight.wires) {
    if (wire.defined()) devices.push_back(wire.device());
  }
  flight.arrived =
      courier.carry(std::move(devices), [this, &flight] { round::travel(flight, exchange, on_mismatch()); });
}

void OuterLoopOptimizer::Impl::give_back(round::Flight flight) {
  round::Fragment& fragment = (*fragments)[flight.fragment];
  fragment.give_back(std::move(flight.wires));
  fragment.give_back(std::move(flight.coded));
  fragment.give_back(std::move(flight.share.wires));
  fragment.give_back(std::move(flight.stepped.velocities));
}

/// Whether a round is to be applied after this step.
bool OuterLoopOptimizer::Impl::due() const {
  return !flights.empty() && inner_step - flights.front().report.inner_step >= streaming.delay;
}

/// The first, wherever it is. What a callback or a rule throws here alone is kept: the other replicas go on.
void OuterLoopOptimizer::Impl::land(const round::Share* newest) {
  SyncReport report;
  {
    round::Flight& flight = flights.front();
    round::Fragment& fragment = (*fragments)[flight.fragment];
    const auto over = c10::make_scope_exit([&] {
      in_callback = false;
      give_back(std::move(flight));
      flights.pop_front();
    });
    const auto begin = std::chrono::steady_clock::now();
    if (flight.arrived.valid()) {
      flight.arrived.get();
    } else if (!flight.travelled) {
      round::travel(flight, exchange, on_mismatch());
    }
    flight.report.reduce_wait += std::chrono::steady_clock::now() - begin;
    flight.report.staleness = inner_step - flight.report.inner_step;
    if (flight.verdict.action == round::Verdict::Action::repair) wait_for_courier();
    in_callback = true;  // a repair asks weight and commit_if again
    try {
      report = round::land(flight, fragment, exchange, terms(), newest);
    } catch (const ConsistencyError&) {
      if (flight.error) std::rethrow_exception(flight.error);
      throw;
    }
    // What made this fragment not finite is in the others as well, and would come back from there.
    const bool lost = report.outcome == Outcome::aborted && flight.header.non_finite > 0;
    if (lost && sync.on_abort == OnAbort::rollback) {
      round::keeping(flight.error, [&] {
        for (round::Fragment& each : fragments->each()) each.rollback();
      });
    }
    if (flight.error) {
      if (!kept) kept = flight.error;
      return;
    }
  }
  round::keeping(kept, [&] {
    if (sync.on_sync) sync.on_sync(report);
  });
}

void OuterLoopOptimizer::Impl::rethrow() {
  if (kept) std::rethrow_exception(std::exchange(kept, nullptr));
}

void OuterLoopOptimizer::Impl::land_all() {
  while (!flights.empty()) land();
}

/// Until it has nothing to do.
void OuterLoopOptimizer::Impl::wait_for_courier() {
  if (!flights.empty() && flights.back().arrived.valid()) flights.back().arrived.wait();
}

/// After a failure: what is on its way fails as well, or has arrived here and not elsewhere.
void OuterLoopOptimizer::Impl::drop_flights() {
  wait_for_courier();
  for (round::Flight& flight : flights) give_back(std::move(flight));
  flights.clear();
}

}  // namespace outerloop
