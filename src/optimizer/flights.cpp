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
          : round::send(sent, fragment, terms(), optimizer::without_grad(groups), exchange.size()));
}

/// The courier takes it from here.
void OuterLoopOptimizer::Impl::depart(round::Flight& flight) {
  std::vector<at::Device> devices{exchange.group()->device()};
  for (const Tensor& wire : flight.wires) devices.push_back(wire.device());
  flight.arrived =
      courier.carry(std::move(devices), [this, &flight] { round::travel(flight, exchange, on_mismatch()); });
}

void OuterLoopOptimizer::Impl::give_back(round::Flight flight) {
  round::Fragment& fragment = (*fragments)[flight.fragment];
  fragment.give_back(std::move(flight.wires));
  if (!flight.share.wires.empty()) fragment.give_back(std::move(flight.share.wires));
  if (!flight.stepped.velocities.empty()) fragment.give_back(std::move(flight.stepped.velocities));
}

/// Whether a round is to be applied after this step.
bool OuterLoopOptimizer::Impl::due() const {
  return !flights.empty() && flights.front().report.inner_step + streaming.delay <= inner_step;
}

/// The first, wherever it is.
void OuterLoopOptimizer::Impl::land(const round::Share* newest) {
  round::Flight& flight = flights.front();
  round::Fragment& fragment = (*fragments)[flight.fragment];
  const SyncReport report = [&] {
    const auto over = c10::make_scope_exit([&] {
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
    return round::land(flight, fragment, exchange, terms(), newest);
  }();
  if (sync.on_sync) sync.on_sync(report);
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
