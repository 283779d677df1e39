#pragma once

#include <torch/optim/optimizer.h>
#include <outerloop/communicator.hpp>
#include <outerloop/error.hpp>
#include <outerloop/fragments.hpp>
#include <outerloop/outer_rule.hpp>
#include <outerloop/sync_options.hpp>

#include <memory>
#include <vector>

namespace outerloop {

using torch::optim::Optimizer;

/// An optimizer that owns an inner optimizer, takes local steps with it, and every `sync_every` steps meets the other
/// replicas in one round:
///   delta = anchor - params;  mean_delta = mean over replicas of delta;  anchor <- rule(anchor, mean_delta);
///   params <- anchor
/// Between rounds it is the inner optimizer, bit for bit. The groups here are the live ones: schedulers, clipping,
/// zero_grad and add_param_group act on them, and step() hands the options on. state() is empty: see inner().state().
///
/// Frozen parameters (requires_grad false) take no part in rounds; one that is frozen or thawed later leaves or joins
/// at the next round, one of a group added later joins at the next step(), on all replicas alike. A tensor put in the
/// place of another inside a group is found out about at the next round; until then the old one is trained.
///
/// Parameters may be on the CPU, on GPUs, or on both; the group may be on either. Work of a round on a GPU goes to its
/// current stream: after the inner step, before the next forward pass. The host waits for the header's few numbers and
/// for the reduction, and with on_sync for the round's end.
///
/// Not thread-safe. Construction, step(), sync(), drain() and reconnect() are collective. With a delay, rounds travel
/// on a thread of this optimizer's own, which uses the group: nobody else may, while a round is under way. weight and
/// commit_if are asked at a round's send, all else of it (on_sync, errors, exceptions of callbacks) comes at its apply.
/// Destruction waits for rounds that are under way, as long as the group's timeout.
///
/// Memory: 8 bytes per trainable element for anchor and wire, 4 more for each slot of the rule and for each sync_every
/// steps of delay (8, and another 4, where replicas are eager), and 4 for velocities in a group with lanes; twice that
/// for float64. With a codec two of its wires in place of one, and the 4 bytes too unless it is
/// one of the library's that ends in blocks or halves; with error feedback two residuals. It is beside the
/// parameters, or on the CPU with anchor_device: then only parameters cross the bus, by way of 32 MiB of pinned memory,
/// and rounds run on the CPU. 32 MiB too where the group is on another device than the wire.
class OuterLoopOptimizer : public torch::optim::Optimizer {
 public:
  /// Throws c10::Error for unusable arguments, naming argument and value; ConsistencyError on every rank if options,
  /// parameter shapes, types or names, or (Start::verify) values differ, or if another rank refused its arguments.
  OuterLoopOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm,
                     std::shared_ptr<const OuterRule> rule, int64_t sync_every, Streaming streaming = {},
                     SyncOptions sync = {});
  OuterLoopOptimizer(OuterLoopOptimizer&&) noexcept;
  OuterLoopOptimizer& operator=(OuterLoopOptimizer&&) noexcept;
  ~OuterLoopOptimizer() override;

  /// One inner step, then a round if the schedule asks for it. A closure runs as the inner optimizer runs it, however
  /// often, and counts as one step. Returns what the inner step returns. Throws CommError, ConsistencyError, and
  /// whatever closure and callbacks throw, the latter when all replicas are through with what they do together.
  Tensor step(LossClosure closure = nullptr) override;
  void skip_step();  ///< counts a step whose gradients were thrown away, so that replicas stay in step
  /// drain(), and then a round of every fragment, outside the schedule, on all replicas at the same step; the schedule
  /// stays. Where replicas are eager, all have the same anchors and slots afterwards: call it now and then, and before
  /// an evaluation.
  void sync();
  void drain();       ///< applies what is under way, in order, on all replicas at the same step
  bool idle() const;  ///< nothing is under way; always so after a step without a delay

  /// Adopts a new group after CommError: the most advanced replica's outer state (the lowest rank on a tie) goes to
  /// all, and params <- anchor on those that were behind. Throws ConsistencyError as construction does.
  void reconnect(std::shared_ptr<Communicator> comm);

  /// For torch::save and torch::load: inner optimizer, anchors, slots and counters, not the parameters themselves.
  /// Neither communicates. Both throw c10::Error unless idle(): drain() first; save also while parameters that were
  /// added, frozen or thawed have not joined. load throws CheckpointError, and changes nothing, if the inner
  /// optimizer's type, the rule, the fragments or the parameters' number, shapes, types or names differ. Continues bit
  /// for bit, in the middle of a window too.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  const Optimizer& inner() const;
  int64_t rounds() const;               ///< committed so far, of all fragments together
  int64_t local_steps() const;          ///< step() and skip_step() calls so far
  std::vector<Tensor> anchors() const;  ///< copies, one per trainable parameter, in its shape; float32 or float64

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outerloop
