#include "cuda/replicas.hpp"
#include "optimizer/thrown.hpp"

// What the optimizers refuse on GPUs, and what replicas must have in common there.

namespace outerloop {
namespace {

using namespace testing;

Thrown construction(const std::shared_ptr<Communicator>& comm, Place place, const SyncOptions& sync = {}) {
  return thrown_by([&] { optimizer_of(model(place, comm->rank()), comm, {.sync = sync}); });
}

/// All ranks throw, and say what rank 0 has and what rank 1.
void expect_disagreement(Place rank_0, Place rank_1, const std::vector<std::string>& words) {
  on_group(2, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
    EXPECT_TRUE(is(construction(comm, comm->rank() == 0 ? rank_0 : rank_1), "ConsistencyError", words));
    EXPECT_TRUE(is(construction(comm, Place::gpu), ""));  // the group is as good as before
    return 0;
  });
}

TEST(ReplicasOnGpus, MustHaveTheirParametersOnTheSameKindsOfDevices) {
  OUTERLOOP_NEEDS_GPUS(1);
  expect_disagreement(Place::gpu, Place::cpu, {"rank 0 has parameters from 0 on: cuda #0", "rank 1 has nothing more"});
  expect_disagreement(Place::gpu, Place::both,
                      {"rank 0 has wires on the parameters' devices", "rank 1 has parameters from 1 on: cpu"});
}

TEST(ReplicasOnGpus, MustHaveTheirWiresOnTheSameKindOfDevice) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_group(2, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
    SyncOptions sync;
    if (comm->rank() == 1) sync.anchor_device = at::kCPU;
    EXPECT_TRUE(is(construction(comm, Place::gpu, sync), "ConsistencyError",
                   {"rank 0 has wires on the parameters' devices, rank 1 has wires on cpu"}));
    return 0;
  });
}

TEST(ReplicasOnGpus, MayNumberTheirGpusDifferently) {
  // Two devices in truth: on a stand-in ranks share one.
  if (c10::cuda::device_count() < 2) GTEST_SKIP() << "needs 2 GPUs, has " << +c10::cuda::device_count();
  on_group(2, Over::gloo, [&](const std::shared_ptr<Communicator>& comm) {
    EXPECT_TRUE(is(construction(comm, Place::gpu), ""));
    return 0;
  });
}

TEST(AnchorDevice, IsTheCpuOrThatOfAllParameters) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_ranks(1, [](int) {
    const auto comm = connect_alone();
    for (const at::Device good : {at::Device(at::kCPU), at::Device(at::kCUDA), gpu(0)}) {
      EXPECT_TRUE(is(construction(comm, Place::gpu, {.anchor_device = good}), "")) << good;
    }
    for (const at::Device bad : {at::Device(at::kCUDA, 7), at::Device(at::kMeta)}) {
      EXPECT_TRUE(is(construction(comm, Place::gpu, {.anchor_device = bad}), "c10::Error",
                     {"anchor_device is " + bad.str(), "a parameter is on cuda:0"}));
    }
    EXPECT_TRUE(is(construction(comm, Place::both, {.anchor_device = at::Device(at::kCUDA)}), "c10::Error",
                   {"anchor_device is cuda", "a parameter is on cpu"}));
  });
}

TEST(AnchorDevice, RefusedOnOneRankIsHeardOfOnTheOther) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_group(2, Over::gloo, [](const std::shared_ptr<Communicator>& comm) {
    SyncOptions sync;
    if (comm->rank() == 1) sync.anchor_device = at::kMeta;
    EXPECT_TRUE(is(construction(comm, Place::gpu, sync), comm->rank() == 1 ? "c10::Error" : "ConsistencyError",
                   {"anchor_device is meta"}));
    return 0;
  });
}

TEST(ParametersOnGpus, ThatAreMovedToAnotherDeviceAreAnErrorThatNamesThem) {
  OUTERLOOP_NEEDS_GPUS(1);
  on_ranks(1, [](int) {
    const std::vector<Tensor> params = model(Place::gpu, 0);
    const auto optimizer = optimizer_of(params, connect_alone(), {});
    params[1].set_data(params[1].detach().cpu());
    EXPECT_TRUE(
        is(thrown_by([&] { optimizer->sync(); }), "c10::Error", {"parameter 1 was on cuda:0", "is on cpu now"}));
  });
}

}  // namespace
}  // namespace outerloop
