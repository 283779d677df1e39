#include <gtest/gtest.h>

#include <outerloop/communicator.hpp>

#include "comm/port.hpp"

namespace outerloop {
namespace {

/// These tests link the library for CPUs.
TEST(ConnectNccl, SaysThatThisBuildHasNone) {
  for (const int size : {1, 2}) {
    try {
      connect_nccl({.size = size}, 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_TRUE(testing::says(message, "this build of outerloop has no NCCL"));
      EXPECT_TRUE(testing::says(message, "outerloop::cuda"));
    }
  }
}

}  // namespace
}  // namespace outerloop
