#include "support/ranks.hpp"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/gloo.hpp"

namespace outerloop::testing {

std::vector<std::shared_ptr<Communicator>> gloo_group(int size, std::chrono::milliseconds timeout, int lanes) {
  if (size == 1) return {connect_alone()};
  std::vector<std::shared_ptr<Communicator>> group(size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      group[rank] = comm::gloo_over(store, {.rank = rank, .size = size, .timeout = timeout, .lanes = lanes});
    });
  }
  for (auto& thread : threads) thread.join();
  return group;
}

}  // namespace outerloop::testing
