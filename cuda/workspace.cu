#include "cuda/sum.cuh"

namespace outerloop::cuda {

size_t workspace_bytes() { return sizeof(Workspace); }
const Summary* total(const Workspace* workspace) { return &workspace->total; }

}  // namespace outerloop::cuda
