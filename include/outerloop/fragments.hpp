#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace outerloop {

/// Elements [begin, end) of a parameter in row-major order; parameters are numbered over all groups of the optimizer.
struct Slice {
  int64_t parameter;
  int64_t begin;
  int64_t end;
};

/// How parameters are divided into fragments, which take turns at rounds: each is sent by itself, and all that travels
/// at one time is one of them. Every element is in exactly one fragment.
class FragmentPlan {
 public:
  /// All of them in one.
  static FragmentPlan whole();
  /// `n` stretches of all parameters in their order, equal in bytes. They end between parameters, unless one is larger
  /// than a fragment's share: that is cut.
  static FragmentPlan sequential(int64_t n);
  /// About as many such stretches as there are parameters, dealt out in turn: each of `n` fragments has some of all
  /// depths.
  static FragmentPlan strided(int64_t n);
  /// The parameters of each fragment. Frozen ones may be left out.
  static FragmentPlan listed(std::vector<std::vector<int64_t>> parameters);

  int64_t count() const { return count_; }
  std::string describe() const;  ///< compared between replicas and with checkpoints

  struct Size {
    int64_t elements;
    int64_t bytes_per_element;
    bool frozen = false;  ///< takes no part
  };
  /// The fragments of parameters of these sizes. Throws c10::Error, naming fragment, parameter and value, if a
  /// parameter is missing, repeated or unknown, a fragment is empty, or there are more fragments than elements.
  std::vector<std::vector<Slice>> cut(const std::vector<Size>& parameters) const;

 private:
  enum class Kind { sequential, strided, listed };
  FragmentPlan(Kind kind, int64_t count, std::vector<std::vector<int64_t>> parameters = {})
      : kind_(kind), count_(count), parameters_(std::move(parameters)) {}

  Kind kind_;
  int64_t count_;
  std::vector<std::vector<int64_t>> parameters_;
};

/// Rounds of fragments, in the shadow of training: Streaming DiLoCo (Douillard et al., 2025, arXiv:2501.18512). With n
/// fragments, fragment f is applied after inner steps a_f + k * sync_every, a_f = ceil(sync_every * (f + 1) / n), and
/// sent `delay` steps before; a send that would lie before the first step is left out, and its apply too. Where a step
/// both sends and applies, it sends first.
struct Streaming {
  FragmentPlan fragments = FragmentPlan::whole();
  /// Inner steps between send and apply, >= 0, in which the network is at work beside training. From sync_every on,
  /// several rounds of one fragment are under way. The steps taken meanwhile are lost unless keep_local keeps them, or
  /// the delay is a multiple of sync_every.
  int64_t delay = 0;
  double keep_local = 0.0;  ///< params <- anchor + keep_local * (local - anchor); 0 replaces, 1 ignores
  /// Eager updates (Kale, Douillard et al., 2025, arXiv:2502.12996): where a fragment is sent and its round from
  /// `delay` steps before is applied, a replica takes its own newest share at once, and the others' of that round. With
  /// deltas d_i of M replicas that weigh the same, at round t, delay being k * sync_every, k >= 1:
  ///   mean_delta = (d_i(t) - d_i(t - k)) / M + mean over replicas of d(t - k)
  /// and what lies before the first round is 0. So every delta counts once, on every replica; but their anchors are no
  /// longer the same, are not compared, and stay apart until sync(), where all take the majority's, the lowest rank's
  /// on a tie. An aborted round takes its replica's own share back. Wants a smaller outer lr: see largest_stable_lr.
  bool eager = false;
};

}  // namespace outerloop
