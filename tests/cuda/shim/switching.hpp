#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif
#if !defined(__x86_64__)
#error "The switch between stacks is written for x86-64."
#endif

/// Stacks and the switch between them, with what the sanitizers must be told.
namespace outerloop::shim {

#if defined(__SANITIZE_THREAD__)
inline void release(void* token) { __tsan_release(token); }
inline void acquire(void* token) { __tsan_acquire(token); }

/// The scheduler's own memory is read and written by all fibres, one at a time: ThreadSanitizer, to which they are
/// threads, is not to look.
class Quiet {
 public:
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Quiet(const Quiet&) = delete;
};
#else
inline void release(void*) {}
inline void acquire(void*) {}
struct Quiet {
  Quiet() {}
};
#endif

/// Where an execution stands while another one runs.
struct Context {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's
  void* tsan_fibre = nullptr;
};

/// By hand, as swapcontext() asks the kernel for the signal mask each time, which takes many times as long. Saves
/// what the System V ABI lets a function expect of a call.
extern "C" void outerloop_shim_switch(void** from, void* to);

__attribute__((no_sanitize("thread"))) inline void switch_to(Context& from, Context& to,
                                                             [[maybe_unused]] bool for_good = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan_fibre, __tsan_switch_to_fiber_no_sync);
#endif
  outerloop_shim_switch(&from.stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

/// release(), in the name of `other`, which may never run again.
__attribute__((no_sanitize("thread"))) inline void release_for([[maybe_unused]] const Context& other,
                                                               [[maybe_unused]] const Context& self,
                                                               [[maybe_unused]] void* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(other.tsan_fibre, __tsan_switch_to_fiber_no_sync);
  __tsan_release(token);
  __tsan_switch_to_fiber(self.tsan_fibre, __tsan_switch_to_fiber_no_sync);
#endif
}

/// The first thing on a new stack.
inline void arrive_from([[maybe_unused]] Context& other) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &other.bottom, &other.size);
#endif
}

/// Memory for a stack, below it a page that nobody may touch.
class Stack {
 public:
  Stack()
      : memory_(static_cast<char*>(
            mmap(nullptr, guard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (memory_ == MAP_FAILED || mprotect(memory_, guard, PROT_NONE) != 0) throw std::bad_alloc();
  }
  Stack(const Stack&) = delete;
  ~Stack() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(bottom(), bytes);  // red zones of calls that never returned
#endif
    munmap(memory_, guard + bytes);
  }

  /// `entry`, which must not return, runs at the next switch to `context`.
  void prepare(Context& context, void (*entry)()) {
    context.bottom = bottom();
    context.size = bytes;
    auto* top = reinterpret_cast<std::uint64_t*>(bottom() + bytes);
    *--top = 0;  // entry's return address; it also puts the stack where a call would
    *--top = reinterpret_cast<std::uint64_t>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = 0;
    context.stack_pointer = top;
  }

 private:
  static constexpr std::size_t guard = 4096, bytes = 128 * 1024;
  char* bottom() const { return memory_ + guard; }
  char* memory_;
};

}  // namespace outerloop::shim
