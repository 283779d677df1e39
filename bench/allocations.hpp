#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

/// Counts calls of operator new, libtorch's included. It replaces the operators of the whole program, so include it in
/// one source file of it only. Tensor memory comes from elsewhere (c10's allocator), but each new tensor calls new too.

namespace outerloop::bench {

struct Allocations {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> largest{0};  ///< bytes
  void add(int64_t bytes) {
    count.fetch_add(1, std::memory_order_relaxed);
    int64_t seen = largest.load(std::memory_order_relaxed);
    while (bytes > seen && !largest.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
    }
  }
  void reset() { count = 0, largest = 0; }
};
inline Allocations allocations;

}  // namespace outerloop::bench

// Not inlined: the compiler would then see memory of operator new being freed by free, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  outerloop::bench::allocations.add(static_cast<int64_t>(bytes));
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
