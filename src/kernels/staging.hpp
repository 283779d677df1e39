#pragma once

#include <ATen/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <optional>

/// How a long vector crosses between a GPU and the CPU: chunk by chunk, by way of two buffers, so that a chunk is
/// copied while the one before is worked on.

namespace outerloop::kernels {

/// Elements per chunk: a multiple of the CPU loops' blocks, and enough that starting a copy costs little.
inline constexpr int64_t staged_chunk = int64_t{1} << 22;

/// Two buffers on one device, pinned on the CPU. They last, grow, and wait for the copies they take part in.
class Staging {
 public:
  explicit Staging(at::Device device) : device_(device) {}
  Staging(Staging&&) = default;
  ~Staging();

  /// The buffer of this chunk, `bytes` long; waits until the copies of chunk - 2 are over.
  at::Tensor buffer(int64_t chunk, int64_t bytes);
  /// Copies from or to the buffer have been put on this stream.
  void copying(int64_t chunk, c10::Stream stream);
  /// Waits for them.
  void finish(int64_t chunk);

 private:
  struct Slot {
    at::Tensor bytes;
    std::optional<c10::Event> copied = {};
  };
  at::Device device_;
  std::array<Slot, 2> slots_;
};

/// The stream on which copies to and from the GPU among these two devices are ordered: its current one.
c10::Stream stream_between(at::Device a, at::Device b);

}  // namespace outerloop::kernels
