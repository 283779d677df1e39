#pragma once

#include <ATen/Tensor.h>

#include <cstdint>
#include <string>

/// Wires whose format the kernels know: layout, and deltas to wires and back.

namespace outerloop::kernels {

using at::Tensor;

struct WireFormat {
  enum class Kind { fp32, fp16, bf16, int8, fp8_e4m3, int4, nf4, e2m1, e3m0, top_k };
  Kind kind = Kind::fp32;
  int64_t block = 1;        ///< elements that share a scale
  bool stochastic = false;  ///< rounding by draws
  int64_t kept = 0;         ///< top_k: of a whole chunk
  int bits = 0;             ///< top_k: of a value
};

/// The longest tile, which every block divides; the chunk of top_k.
inline constexpr int64_t wire_tile = 4096;
/// Elements of a wire that are coded at a time, whole blocks. Few: while one tile is coded the processor reads on for
/// the next, but not across thousands of elements.
inline int64_t tile_of(const WireFormat& format) {
  constexpr int64_t few = 512;
  return format.kind == WireFormat::Kind::top_k ? wire_tile : format.block > few ? format.block : few;
}
/// Bits of an index in a chunk.
inline constexpr int64_t index_bits = 12;

/// Where the parts of a wire of `numel` elements lie: codes first, scales after, with indices of top_k before both.
struct WireLayout {
  int64_t indices = 0;      ///< bytes
  int64_t codes = 0;        ///< bytes, with what aligns the scales
  int64_t scales = 0;       ///< number
  int64_t scale_bytes = 0;  ///< of each
  int64_t bytes() const { return indices + codes + scales * scale_bytes; }
};
WireLayout layout(const WireFormat& format, int64_t numel);

/// Elements kept of a chunk of `numel`: of the last one fewer, if it is short.
int64_t kept_of(const WireFormat& format, int64_t numel);

/// wire <- delta: uint8, float32, beside each other.
void encode(const WireFormat& format, const Tensor& delta, const Tensor& wire, uint64_t key);
/// delta <- wire, which must not be damaged.
void decode(const WireFormat& format, const Tensor& wire, const Tensor& delta);
/// What about a wire of `numel` elements cannot be: the first block and value; else empty. fp32, fp16 and bf16 have
/// nothing to check but their elements.
std::string damage(const WireFormat& format, const Tensor& wire, int64_t numel);

}  // namespace outerloop::kernels
