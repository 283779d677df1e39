#include <gtest/gtest.h>

#include <outerloop/c10d.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/pair.hpp"

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::expect_sums;
using testing::on_two_threads;

TEST(FromC10d, SharesAGroupBuiltByHand) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_two_threads([&](int rank) {
    using Gloo = c10d::ProcessGroupGloo;
    const auto options = Gloo::Options::create(60s);
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
    const auto backend = c10::make_intrusive<Gloo>(store, rank, 2, options);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    auto comm = from_c10d(group, at::kCPU);
    EXPECT_EQ(comm->rank(), rank);
    EXPECT_EQ(comm->size(), 2);
    EXPECT_EQ(comm->device(), at::Device(at::kCPU));
    expect_sums(comm);

    std::vector<Tensor> by_hand{torch::full({2}, rank + 1.0f)};  // its other users go on using it
    group->allreduce(by_hand)->wait();
    EXPECT_TRUE(torch::equal(by_hand[0], torch::full({2}, 3.0f)));
    group.reset();
    expect_sums(comm);
  });
}

TEST(FromC10d, RefusesNoGroup) { EXPECT_THROW(from_c10d({}, at::kCPU), c10::Error); }

}  // namespace
}  // namespace outerloop
