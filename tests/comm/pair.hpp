#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <outerloop/communicator.hpp>

#include <thread>

namespace outerloop::testing {

/// Both ranks of a pair can hear each other.
inline void expect_sums(const std::shared_ptr<Communicator>& comm) {
  const Tensor flat = torch::full({3}, comm->rank() + 1.0f);
  comm->all_reduce_sum(flat).wait();
  EXPECT_TRUE(torch::equal(flat, torch::full({3}, 3.0f)));
}

/// Runs body(rank) on two threads.
template <class Body>
void on_two_threads(Body body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

}  // namespace outerloop::testing
