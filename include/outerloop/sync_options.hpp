#pragma once

#include <outerloop/codec.hpp>
#include <outerloop/communicator.hpp>
#include <outerloop/report.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace outerloop {

enum class Start { broadcast, verify, trust };  ///< rank 0's parameters to all | throw if they differ | neither
/// params <- anchor, of the fragment, or of all where the delta was not finite | train on from the local parameters
enum class OnAbort { rollback, keep_local };
enum class OnMismatch {
  repair,
  fail
};  ///< anchors differ: take the majority's (lowest rank on a tie) | ConsistencyError

/// What a codec loses of a round is added to the next (Seide et al., 2014; Karimireddy et al., 2019, arXiv:1901.09847):
///   sent = delta + decay * residual;  residual <- sent - decode(encode(sent))
/// on each replica; and at the owner of a shard, whose mean is coded again, the same with a residual of its own. Both
/// change with a commit only. When the group changes they are folded, so that their part of the mean stays the same.
struct ErrorFeedback {
  double decay = 1;                      ///< in (0, 1]; SparseLoCo: 0.95
  at::ScalarType residual = at::kFloat;  ///< type it is kept in: float32 or bfloat16
};

struct SyncOptions {
  std::shared_ptr<const Codec> codec = codecs::fp32();         ///< how deltas travel; float64 ones always travel whole
  std::optional<ErrorFeedback> error_feedback = std::nullopt;  ///< not with fp32; wants a delay below sync_every
  Start start = Start::broadcast;
  OnAbort on_abort = OnAbort::rollback;
  OnMismatch on_mismatch = OnMismatch::repair;
  std::optional<at::Device> anchor_device =
      std::nullopt;                     ///< of anchor, slots and wire: at::kCPU keeps them off the GPU
  std::vector<std::string> names = {};  ///< parameter names, over all groups, for messages and checkpoints
  std::function<double()> weight =
      nullptr;  ///< this replica's share of the mean, for example tokens since the last round; 0, or 1e-9 to 1e15
  std::function<bool(const SyncReport&)> commit_if = nullptr;  ///< asked when the delta is formed; all must say yes
  std::function<void(const SyncReport&)> on_sync = nullptr;    ///< after each round, on the thread that called step()
  std::function<void(const std::string&)> on_warning =
      nullptr;          ///< told at construction of an outer lr above its limit (stability.hpp)
  bool strict = false;  ///< that is an error: c10::Error
  std::function<std::shared_ptr<Communicator>()> on_comm_error =
      nullptr;  ///< a new group; step() reconnects and goes on. null: the CommError goes to the caller
};

}  // namespace outerloop
