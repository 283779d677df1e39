#pragma once

#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <new>

namespace outerloop::testing {

/// Tensors of this thread on the CPU may have fewer bytes than this; larger ones throw std::bad_alloc.
inline thread_local size_t too_much = SIZE_MAX;

/// libtorch's allocator for the CPU with that limit.
class LimitedMemory final : public c10::Allocator {
 public:
  /// For the rest of the process.
  static void install() {
    static LimitedMemory limited;
    c10::SetCPUAllocator(&limited, 100);
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= too_much) throw std::bad_alloc();
    return beneath_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return beneath_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { beneath_.copy_data(to, from, bytes); }

 private:
  c10::Allocator& beneath_ = *c10::GetDefaultCPUAllocator();
};

}  // namespace outerloop::testing
