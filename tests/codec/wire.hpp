#pragma once

#include <torch/types.h>
#include <outerloop/codec.hpp>

#include <memory>
#include <vector>

namespace outerloop::testing {

using at::Tensor;
using CodecPtr = std::shared_ptr<const Codec>;

inline Tensor encoded(const Codec& codec, const Tensor& delta, uint64_t key = 0) {
  Tensor wire = torch::zeros({codec.wire_bytes(delta.numel())}, torch::kByte);
  codec.encode(delta, wire, key);
  return wire;
}
inline Tensor decoded(const Codec& codec, const Tensor& wire, int64_t numel) {
  Tensor delta = torch::full({numel}, NAN);
  codec.decode(wire, delta);
  return delta;
}
inline Tensor through(const Codec& codec, const Tensor& delta, uint64_t key = 0) {
  return decoded(codec, encoded(codec, delta, key), delta.numel());
}

inline double relative_error(const Tensor& got, const Tensor& wanted) {
  return ((got - wanted).to(at::kDouble).norm() / wanted.to(at::kDouble).norm()).item<double>();
}

/// Every codec, with blocks that differ from the defaults too.
inline std::vector<CodecPtr> all_codecs() {
  using namespace codecs;
  return {fp32(),
          fp16(),
          bf16(),
          int8(),
          int8(16),
          int8(4096),
          fp8_e4m3(),
          int4(),
          int4(32),
          nf4(),
          nf4(16),
          e2m1(),
          e2m1(64),
          e3m0(),
          top_k(),
          top_k(1.0 / 32, 8),
          top_k(1.0, 2),
          int8(256, Rounding::stochastic),
          nf4(64, Rounding::stochastic)};
}

}  // namespace outerloop::testing
