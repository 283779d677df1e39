#pragma once

#include <outerloop/communicator.hpp>

#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace outerloop::testing {

/// OUTERLOOP_TEST_LANES, or 0: so that suites run over groups with lanes as well.
inline int usual_lanes() {
  const char* lanes = std::getenv("OUTERLOOP_TEST_LANES");
  return lanes ? std::atoi(lanes) : 0;
}

/// One Gloo group of `size` ranks inside this process, meeting over a HashStore: no ports, no files.
std::vector<std::shared_ptr<Communicator>> gloo_group(int size,
                                                      std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                                      int lanes = usual_lanes());

/// Runs body(communicator) on one thread per rank and returns what each returned, by rank. The first exception (by
/// rank) is rethrown after all threads ended.
template <class Body>
auto run_ranks(const std::vector<std::shared_ptr<Communicator>>& group, Body body) {
  using Result = std::invoke_result_t<Body&, std::shared_ptr<Communicator>>;
  constexpr bool returns = !std::is_void_v<Result>;
  std::vector<std::conditional_t<returns, Result, char>> results(group.size());
  std::vector<std::exception_ptr> errors(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        if constexpr (returns) {
          results[rank] = body(group[rank]);
        } else {
          body(group[rank]);
        }
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  if constexpr (returns) return results;
}
template <class Body>
auto run_ranks(int size, Body body) {
  return run_ranks(gloo_group(size), std::move(body));
}

}  // namespace outerloop::testing
