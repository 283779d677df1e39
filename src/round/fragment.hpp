#pragma once

#include <outerloop/outer_rule.hpp>
#include <outerloop/sync_options.hpp>

#include <optional>
#include <vector>

#include "codec/residuals.hpp"
#include "kernels/kernels.hpp"
#include "outer/recurrence.hpp"
#include "params/flat_params.hpp"
#include "round/coded_wire.hpp"
#include "round/exchange.hpp"

namespace outerloop::round {

/// Parameters on one device and of one type of state, with that state: one flat vector.
struct Bucket {
  FlatParams params;
  OuterState state;
  codec::Residuals residuals = {};
};

/// What the deltas of one round travel in: a vector for each bucket. Pinned if it is on the CPU and the parameters are
/// not. Undefined where they are coded as they are formed.
using Wires = std::vector<Tensor>;

/// What the deltas of one round travel in if they have a codec: none for a bucket of float64, which travels whole.
struct Coded {
  struct OfBucket {
    CodedWire wire;
    CodedWire::Owner owner;
    Tensor arrives = {};  ///< float32, what the wire stands for, unless it is coded at once
    Tensor next = {};     ///< what this replica's residual becomes
  };
  std::vector<std::optional<OfBucket>> buckets = {};  ///< none at all: every bucket travels whole
  std::shared_ptr<const Codec> codec = {};
  int ranks = 1, rank = 0;  ///< of the group
  uint64_t key = 0;         ///< of draws
};

/// A stretch of a bucket's vectors that travels by itself.
struct Piece {
  size_t bucket;
  int64_t offset, numel;
  kernels::Params params = {};  ///< of the bucket's, what lies there
  Tensor of(const Tensor& flat) const { return flat.narrow(0, offset, numel); }
};

/// What pieces were stepped into: anchors are in the wires then.
struct Stepped {
  Wires velocities = {};   ///< none without momentum
  double sum_squares = 0;  ///< of the mean delta, if asked for
  bool whole = false;      ///< all pieces, and the round commits
};

/// How the kernels step.
kernels::Step fused_step(const Recurrence& rule, double inverse_weight, double keep_local);

/// The outer state of a set of parameters, and the three verbs of a round on it. float64 parameters have a bucket of
/// their own, as a float32 delta would cost them half their digits.
class Fragment {
 public:
  /// Anchors are the parameters as they are, slots zero. The state is on `anchor_device`, or beside the parameters.
  /// Residuals are zero, and of the exchange's group.
  Fragment(std::vector<ParamSlice> slices, int slots, const SyncOptions& sync, const Exchange& exchange);

  Wires take_wires();                                ///< of an earlier round, if any were given back
  void give_back(Wires wires);                       ///< when nothing uses them any more; none are ignored
  void reserve_wires() { give_back(take_wires()); }  ///< the next to be taken need no memory
  Coded take_coded(const Exchange& exchange);        ///< of an earlier round, or new; none where deltas travel whole
  void give_back(Coded coded);
  bool coded() const { return codec_ != nullptr; }
  Wires take_velocities();  ///< the same for those of pieces; none without momentum

  kernels::Summary send(const Wires& wires, double weight);  ///< params -> delta -> wire
  /// The same by the codec: with feedback, params -> delta + decay * residual -> wires -> coded wires. Unweighted, but
  /// for what travels whole. What is not finite is not coded.
  kernels::Summary send(const Wires& wires, Coded& coded, double weight);
  /// wire -> anchor -> params. The sum of squares of the mean delta goes to `sum_squares` unless that is null; then
  /// work on a GPU may still go on when this returns, ordered before what its current stream is given next.
  /// Where the sum stays coded it is in `coded`, and read there.
  void apply(Wires& wires, const Coded& coded, const OuterRule& rule, double inverse_weight, double keep_local,
             double* sum_squares);

  /// The same piece by piece, which all travel by themselves: send; step the sum aside, wire <- anchor after the outer
  /// step; take what all pieces were stepped into.
  std::vector<Piece>& pieces();  ///< of the parameters as they are now; throws as pull() does
  kernels::Summary send(Piece& piece, const Wires& wires, double weight);
  void step(const Piece& piece, const Wires& wires, Stepped& stepped, const kernels::Step& step, bool wants_norm) const;
  void take(Wires& wires, Stepped& stepped, double keep_local);

  /// The round has committed: what it lost is kept. `counted`: this replica had a share in it.
  void keep_residuals(Coded& coded, bool counted);

  void rollback();                                                       ///< params <- anchor
  std::vector<OuterState> state_of(Exchange& exchange, int root) const;  ///< copies of root's; of each bucket
  void take(std::vector<OuterState> states);                             ///< anchor, slots <- these

  uint64_t fingerprint() const;  ///< of the anchor, as send() tells it
  int64_t rounds() const { return rounds_; }
  void set_rounds(int64_t rounds);
  int64_t numel() const;
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  /// What does not stay coded in apply goes to `wires`. Says what does: what the kernels can take so.
  std::vector<bool> decode(Wires& wires, const Coded& coded, bool rule_is_known) const;
  /// The kernels make the wire of the parameters, without a delta in float32 between.
  bool codes_at_once(const Bucket& bucket) const;
  kernels::Summary code_at_once(Bucket& bucket, Coded::OfBucket& of, uint64_t key) const;
  kernels::Summary code(Bucket& bucket, const Tensor& sent, Coded::OfBucket& of, uint64_t key) const;
  void pull();
  void scatter(double keep_local);

  std::shared_ptr<const Codec> codec_;  ///< null: deltas travel whole
  std::optional<ErrorFeedback> feedback_;
  std::vector<Bucket> buckets_;
  std::vector<Wires> spare_;
  std::vector<Coded> spare_coded_;
  std::vector<Piece> pieces_;  ///< kept for what kernels keep in their Params
  int64_t rounds_ = 0;
};

/// The fingerprint of several vectors, one after the other.
inline uint64_t followed(uint64_t before, uint64_t next) { return 31 * before + next; }
/// What is told of them.
inline void join(kernels::Summary& before, const kernels::Summary& next) {
  before.sum_squares += next.sum_squares;
  before.non_finite += next.non_finite;
  before.fingerprint = followed(before.fingerprint, next.fingerprint);
}

/// Bytes that each replica sends when these are reduced.
int64_t bytes_sent(const Wires& wires, int replicas);
/// wire -> sum over ranks of wire. In pieces, if the group has lanes.
void reduce(const Wires& wires, Exchange& exchange);
/// The same for piece `number`, which may be in flight with others.
Pending reduce(const Tensor& piece, size_t number, Exchange& exchange);

/// coded wires -> mean delta, of every bucket in `wires`, unless it stays coded. Returns the first rank that could not,
/// or -1; its exception, if there was one, goes to `error` there.
int average(const Wires& wires, Coded& coded, Exchange& exchange, const std::vector<double>& weights,
            std::exception_ptr& error);
int64_t bytes_sent(const Wires& wires, const Coded& coded, int replicas);

/// Where anchor, slots and wire of these parameters are.
at::Device state_device(const FlatParams& params, const std::optional<at::Device>& anchor_device);

/// The parameters that share a bucket, in buckets' order: devices as they come, of each all but float64, then float64;
/// empty buckets are left out.
std::vector<FlatParams> split(const std::vector<ParamSlice>& slices);

}  // namespace outerloop::round
