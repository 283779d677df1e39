#include <outerloop/communicator.hpp>
#include <utility>

namespace outerloop {

namespace {

void finish_quietly(std::function<void()>& wait) noexcept {
  if (!wait) return;
  try {
    std::exchange(wait, nullptr)();
  } catch (...) {  // the communicator remembers the failure and reports it at its next call
  }
}

}  // namespace

Pending::Pending(Pending&& other) noexcept : wait_(std::exchange(other.wait_, nullptr)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    finish_quietly(wait_);
    wait_ = std::exchange(other.wait_, nullptr);
  }
  return *this;
}

Pending::~Pending() { finish_quietly(wait_); }

void Pending::wait() {
  if (wait_) std::exchange(wait_, nullptr)();
}

int64_t all_reduce_bytes(int64_t payload, int size) {
  // Split, so that payloads of exabytes would be needed to overflow.
  const int64_t steps = 2 * (int64_t{size} - 1);
  return payload / size * steps + payload % size * steps / size;
}

}  // namespace outerloop
