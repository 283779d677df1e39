#pragma once

#include <outerloop/outer_loop.hpp>

#include <chrono>
#include <exception>
#include <future>
#include <string>
#include <vector>

#include "round/exchange.hpp"
#include "round/fragment.hpp"
#include "round/share.hpp"
#include "round/start.hpp"

namespace outerloop::round {

/// What a round needs to know besides the fragment.
struct Terms {
  const OuterRule& rule;
  const SyncOptions& sync;
  const Description& description;
  const Streaming& streaming;
  int64_t inner_step;
};

/// A round between its send and its apply.
struct Flight {
  size_t fragment = 0;  ///< its number
  SyncReport report = {};
  Header header = {};
  std::exception_ptr error = {};  ///< thrown by a callback here; the round aborts on all replicas
  std::string text = {};          ///< the error's, or else the description
  Wires wires = {};
  Coded coded = {};
  Share share = {};  ///< of eager replicas
  Verdict verdict = {};
  std::future<void> arrived = {};  ///< when a courier travels
  bool travelled = false;          ///< all that is left is to land
  Stepped stepped = {};            ///< when pieces were stepped as they arrived
};

/// Header of this replica in its present state, for a conversation about `talk` after `rounds` rounds of `elements`.
Header header(Talk talk, const Terms& terms, int64_t rounds, int64_t elements);

/// Before its send: this replica's weight is known, or what sync.weight threw.
Flight prepared(Fragment& fragment, size_t number, const Terms& terms, std::vector<int64_t> without_grad,
                const Exchange& exchange);

/// The delta as a whole, and what this replica says of it.
void offer(Flight& flight, Fragment& fragment, const Terms& terms);
/// What this replica says of a delta that was formed: sync.commit_if is asked.
void say(Flight& flight, const kernels::Summary& delta, const Terms& terms);

/// Exchange of headers, and the decision.
void meet(Flight& flight, Exchange& exchange, OnMismatch on_mismatch);

/// Adds the time until its end to `sum`.
class Timed {
 public:
  using Seconds = std::chrono::duration<double>;
  explicit Timed(Seconds& sum) : sum_(sum), begin_(Clock::now()) {}
  Timed(const Timed&) = delete;
  ~Timed() { sum_ += Clock::now() - begin_; }

 private:
  using Clock = std::chrono::steady_clock;
  Seconds& sum_;
  Clock::time_point begin_;
};

/// Keeps an exception of `part`, unless there is one already: the other ranks are about to go on.
template <class Part>
void keeping(std::exception_ptr& error, const Part& part) {
  try {
    part();
  } catch (...) {
    if (!error) error = std::current_exception();
  }
}

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

}  // namespace outerloop::round
