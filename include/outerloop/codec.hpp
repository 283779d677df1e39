#pragma once

#include <ATen/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace outerloop {

using at::Tensor;

enum class Reduction {
  shards,  ///< each rank averages one shard of all wires and codes the mean again: 2 (R - 1) / R wires sent
  gather   ///< every rank takes all wires and averages them itself, for sparse ones: R - 1 wires sent
};

/// How a delta travels: n float32 values as wire_bytes(n) bytes. Stateless: what a codec loses is kept, if it is, by
/// ErrorFeedback. It must turn the same bits into the same bits on every replica.
///
/// Subclass it for wires of one's own: rounds then go stage by stage (delta, encode, decode, step), where the library's
/// own codecs, but for top_k, run in fused kernels, to the same bits as stage by stage.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string describe() const = 0;  ///< name and settings; compared between replicas
  virtual Reduction reduction() const = 0;
  virtual int64_t block() const { return 1; }           ///< elements that are coded together: shards end between them
  virtual int64_t wire_bytes(int64_t numel) const = 0;  ///< of a delta of `numel` elements
  /// wire <- delta. `delta` is float32 of n elements, `wire` uint8 of wire_bytes(n) from a multiple of 4 bytes on, both
  /// contiguous, on the CPU. `key` differs from call to call, for codecs that round at random: the same key, the same
  /// draws. Values that are not finite need not be kept, but must not be made finite. Throws c10::Error.
  virtual void encode(const Tensor& delta, const Tensor& wire, uint64_t key) const = 0;
  /// delta <- wire. Throws c10::Error for a wire that encode() cannot have made.
  virtual void decode(const Tensor& wire, const Tensor& delta) const = 0;
};

enum class Rounding {
  nearest,    ///< ties to even
  stochastic  ///< up or down at random, by Philox draws, so that the expectation is exact
};

/// The library's codecs. Values share a scale by blocks of `block` elements, a power of two from 16 to 4096, which
/// cross the borders of tensors: codes first, scales after. `bytes` of a wire of n elements, whole blocks; relative L2
/// error of a normal distribution, and of Student's t with 4 degrees of freedom.
///
///   codec        bytes                              error         scale
///   fp32         4 n                                0             none; summed by a ring all-reduce
///   fp16, bf16   2 n                                2e-4, 2e-3    none; fp16 ends at 65504
///   int8         n + 4 n / block                    0.007, 0.013  largest magnitude / 127, float32
///   fp8_e4m3     n + 4 n / block                    0.026, 0.025  / 448, float32
///   int4         n / 2 + 2 n / block                0.13, 0.23    / 7, bfloat16; 0.097, 0.132 with block 32
///   nf4          n / 2 + 2 n / block                0.092, 0.111  / 1, bfloat16
///   e2m1         n / 2 + 2 n / block                0.101, 0.103  / 6, bfloat16
///   e3m0         n / 2 + 4 n / block                0.195, 0.183  / 1, float32
///   top_k        of every 4096 elements the `density` largest: 12 bits of index each, and `bits`, 2 (a sign and one of
///                two magnitudes of the chunk's) or 8 (as int8). Averaged over all replicas, not over those that sent
///                an element. SparseLoCo (Sarfi et al., 2025, arXiv:2508.15706). Wants error feedback.
///
/// All throw c10::Error for a block, a density or bits that are out of range.
namespace codecs {
std::shared_ptr<const Codec> fp32();
std::shared_ptr<const Codec> fp16();
std::shared_ptr<const Codec> bf16();
std::shared_ptr<const Codec> int8(int64_t block = 256, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> fp8_e4m3(int64_t block = 256, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> int4(int64_t block = 256, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> nf4(int64_t block = 64, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> e2m1(int64_t block = 32, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> e3m0(int64_t block = 256, Rounding rounding = Rounding::nearest);
std::shared_ptr<const Codec> top_k(double density = 1.0 / 64, int bits = 2);  ///< density in (0, 1]
}  // namespace codecs

}  // namespace outerloop
