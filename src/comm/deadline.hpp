#pragma once

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace outerloop::comm {

/// make(), on a thread of its own: some calls of libtorch and Gloo wait for an answer without a limit, or retry when
/// their time is over. One that has not returned a little after `timeout`, so that its own error may come first, is
/// left to itself, and std::runtime_error is thrown. What `make` uses must therefore be its own.
///
/// SIGPIPE is blocked there, and so in every thread that `make` starts: those of Gloo write to sockets without
/// MSG_NOSIGNAL, and the death of a peer would kill this process instead of being an error.
template <class Make>
auto within(std::chrono::milliseconds timeout, Make make) {
  constexpr std::chrono::milliseconds grace{2000};
  using Result = std::invoke_result_t<Make&>;
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(make));
  auto result = task->get_future();
  std::thread([task] {
    sigset_t closed_connection;
    sigemptyset(&closed_connection);
    sigaddset(&closed_connection, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &closed_connection, nullptr);
    (*task)();
  }).detach();
  if (result.wait_for(timeout + grace) != std::future_status::ready) throw std::runtime_error("no answer in time");
  return result.get();
}

}  // namespace outerloop::comm
