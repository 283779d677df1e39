#include <c10/util/Exception.h>

#include "comm/nccl.hpp"

namespace outerloop::comm {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(
      false,
      "this build of outerloop has no NCCL: link outerloop::cuda, from a configuration with OUTERLOOP_CUDA that "
      "found nccl.h (OUTERLOOP_NCCL_INCLUDE); connect_gloo needs neither");
}

}  // namespace

int nccl_devices() { return 0; }
void check_nccl_device(int) { refuse(); }
std::shared_ptr<Communicator> nccl_over(c10::intrusive_ptr<c10d::Store>, const Rendezvous&, int,
                                        std::optional<std::chrono::milliseconds>) {
  refuse();
}

}  // namespace outerloop::comm
