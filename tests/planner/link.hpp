#pragma once

#include <outerloop/planner.hpp>

#include <memory>

#include "support/faults.hpp"

namespace outerloop::planner {

/// With two replicas an all-reduce of n bits takes n seconds.
inline constexpr Link bit_per_second{.bits_per_second = 1};

/// What `link` takes for one collective of a group of `size`; only all-reduces carry anything to speak of.
inline double seconds_for(const Link& link, int size, const testing::Tapped::Call& call) {
  if (call.name != "all_reduce_sum") return link.latency_seconds;
  const double bits = 8.0 * static_cast<double>(c10::elementSize(call.dtype)) * static_cast<double>(call.numel);
  return link.latency_seconds + 2.0 * (size - 1) / size * bits / link.bits_per_second;
}

/// `group` behind such a link: `pass` lets the seconds of each collective go by before it happens.
inline std::shared_ptr<testing::Tapped> behind(const Link& link, const std::shared_ptr<Communicator>& group,
                                               std::function<void(double)> pass) {
  return std::make_shared<testing::Tapped>(
      group, [link, size = group->size(), pass](const auto& call) { pass(seconds_for(link, size, call)); });
}

}  // namespace outerloop::planner
