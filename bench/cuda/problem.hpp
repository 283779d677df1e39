#pragma once

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <outerloop/flat_params.hpp>

#include <memory>
#include <vector>

#include "cuda/launch.hpp"
#include "expected.hpp"

namespace outerloop::bench {

/// One outer step's tensors on the GPU, shared by all contenders, and the contenders themselves. The inner steps
/// between two outer steps are copies, so that nothing but the baselines needs a kernel of libtorch.
class Problem {
 public:
  Problem(int64_t numel, int64_t tensors, const Numbers& numbers);

  void reset();                    ///< to the beginning: the numbers' anchor, velocity 0, local of round 0
  void inner_steps(size_t round);  ///< params <- local of that round

  // What the library does: the two launches, and its own way to them with the host's wait for the summary of send.
  void copy();
  void send();
  void apply();
  void send_and_apply() { send(), apply(); }
  void outer_step();

  /// 80 bytes per element: one pass for each operation, with C++'s torch::optim::SGD, tensor by tensor.
  void chain();
  /// 40 bytes per element, 36 for bfloat16 parameters: the outer step on the anchor itself, the mean folded into its
  /// lr.
  void composition();
  /// 108 bytes per element: the passes of torchft's DiLoCo, with its multi-tensor SGD.
  void torchft();

  /// Whether a contender's two rounds from reset() on end as expected: to the bit, or within a relative and absolute
  /// `tolerance` in anchor and parameters. `on_cpu`: compared there, without libtorch's kernels.
  bool agrees(const Expected& expected, double tolerance, bool on_cpu) const;

 private:
  Numbers numbers_;
  Tensor anchor_, velocity_, wire_;
  std::vector<Tensor> params_, anchors_, velocities_, deltas_;
  FlatParams flat_;
  Tensor chunks_, workspace_;
  cuda::Table table_{};
  std::unique_ptr<torch::optim::SGD> sgd_;
};

}  // namespace outerloop::bench
