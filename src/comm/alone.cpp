#include <outerloop/communicator.hpp>

namespace outerloop {

namespace {

struct Alone final : Communicator {
  int rank() const override { return 0; }
  int size() const override { return 1; }
  at::Device device() const override { return at::kCPU; }
  Pending all_reduce_sum(Tensor) override { return {}; }
  Pending all_gather(Tensor rows, Tensor flat) override {
    rows.view(-1).copy_(flat.view(-1));
    return {};
  }
  Pending all_to_all(Tensor out, Tensor in) override {
    out.view(-1).copy_(in.view(-1));
    return {};
  }
  Pending broadcast(Tensor, int) override { return {}; }
};

}  // namespace

std::shared_ptr<Communicator> connect_alone() { return std::make_shared<Alone>(); }

}  // namespace outerloop
