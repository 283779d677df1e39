#include <c10/util/Exception.h>

#include "kernels/cuda.hpp"

namespace outerloop::kernels::cuda {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false,
              "this build of outerloop has no CUDA: link outerloop::cuda, from a configuration with OUTERLOOP_CUDA");
}

}  // namespace

bool available() { return false; }

Summary send(Params&, const Tensor&, const Tensor&, double) { refuse(); }
void apply(Params&, const Tensor&, const Tensor&, const Tensor&, const Step&, double*) { refuse(); }
void step_apart(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Step&, double*) { refuse(); }
void delta(Params&, const Tensor&, const Tensor&) { refuse(); }
void gather(Params&, const Tensor&) { refuse(); }
void scatter(Params&, const Tensor&, double) { refuse(); }
void step(const Tensor&, const Tensor&, const Tensor&, const Step&) { refuse(); }
Summary summarize(const Tensor&) { refuse(); }

}  // namespace outerloop::kernels::cuda
