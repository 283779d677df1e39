#pragma once

#include <outerloop/communicator.hpp>

#include <cstdint>
#include <optional>

/// What a schedule costs in time over a given link, before anything is trained: compute utilisation, the share of time
/// in which a replica computes instead of waiting for messages. Nothing in the model is fitted:
///   message  what travels as one all-reduce: a fragment, or a layer. It takes
///            trips * latency_seconds + 2 (replicas - 1) / replicas * its bits / bits_per_second
///   channel  carries one message at a time, in the order in which they become ready
///   waiting  what needs a message is computed when that has arrived, and all that follows it later by as much
/// Steps take the same time on all replicas; kernels of a round are not counted. All errors are c10::Error and name the
/// value: seconds and bits must be positive and finite, but latency may be 0 and bandwidth infinite.

namespace outerloop::planner {

/// What every replica does.
struct Job {
  int64_t parameters = 0;
  double step_seconds = 0;  ///< one inner step of computing: a third forward, two thirds backward
  int layers = 1;           ///< alike in time and size
  int replicas = 2;
};

/// What joins the replicas.
struct Link {
  double bits_per_second = 0;  ///< sent by a replica in a ring all-reduce
  double latency_seconds = 0;  ///< of an all-reduce of next to nothing
};

enum class Sending {
  after_step,      ///< as the optimizers here do: a fragment is one message, sent after an inner step and needed by the
                   ///< next one, or `delay` later; two trips, a header's and the wire's
  during_backward  ///< layer by layer: a message is sent when its layer's backward ends and needed by that layer's next
                   ///< forward, or `delay` steps later; one trip. Fragment f is the layers l with l mod fragments = f
};

/// Fragment f is needed after inner steps ceil(sync_every * (f + 1) / fragments) + k * sync_every, and sent `delay`
/// steps before. Equal shares of the parameters, up to a layer.
struct Schedule {
  int64_t sync_every = 100;  ///< inner steps between rounds, >= fragments
  int fragments = 1;         ///< <= layers if they are sent during backward
  int64_t delay = 0;         ///< inner steps; from sync_every on, several rounds of a fragment are under way
  double bits = 32;          ///< of the wire, per parameter
  Sending sending = Sending::after_step;
};

/// Synchronous data parallelism: all layers of gradients at every step.
inline Schedule data_parallel(double bits = 32) {
  return {.sync_every = 1, .bits = bits, .sending = Sending::during_backward};
}

/// Computing / (computing + waiting), in (0, 1], once the first rounds are over. Reproduces table 4 of Streaming DiLoCo
/// (Douillard et al., 2025, arXiv:2501.18512): tests/planner/published_test.cpp.
double utilisation(const Job& job, const Link& link, const Schedule& schedule);

/// The smallest bits_per_second, from 1 up, with which utilisation reaches `target`, in (0, 1), to nine digits;
/// infinity if latency alone is too much for it.
double bandwidth_needed(const Job& job, double latency_seconds, const Schedule& schedule, double target);

/// What recommend may choose.
struct Limits {
  int64_t sync_every = 10'000;  ///< <= 10^15
  int fragments = 1'000;        ///< never more than layers
  int64_t delay = 1;            ///< 1 costs no loss in arXiv:2501.18512 and arXiv:2502.12996; 0: no overlap
};

struct Recommendation {
  Schedule schedule;
  double utilisation = 0;
};

/// The schedule for a target utilisation in (0, 1), to nine digits: of those within limits, sent after steps, with
/// sync_every a multiple of fragments, the one with the smallest sync_every, as replicas that meet more often reach a
/// lower loss; of these the smallest delay, below sync_every, and of these the fewest fragments. Nothing if none
/// reaches the target. Every delay within limits may be tried.
std::optional<Recommendation> recommend(const Job& job, const Link& link, double target, double bits = 32,
                                        const Limits& limits = {});

/// The link that joins a group, measured with its own all-reduces in about `seconds` at most, or as long as fourteen
/// take. The line through the medians of the smallest and of the largest that fits, up to 64 MiB: for these the model
/// gives the measured times again. Collective: rank 0 measures and says what is done next, and every rank returns what
/// it found. A group of one has no link: bandwidth is infinite, latency 0. Throws CommError.
Link probe(Communicator& comm, double seconds = 2);

}  // namespace outerloop::planner
