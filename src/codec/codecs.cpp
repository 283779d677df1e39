#include <outerloop/codec.hpp>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "codec/known.hpp"

namespace outerloop {

namespace {

using kernels::WireFormat;
using Kind = WireFormat::Kind;

const char* name(Kind kind) {
  switch (kind) {
    case Kind::fp32:
      return "fp32";
    case Kind::fp16:
      return "fp16";
    case Kind::bf16:
      return "bf16";
    case Kind::int8:
      return "int8";
    case Kind::fp8_e4m3:
      return "fp8_e4m3";
    case Kind::int4:
      return "int4";
    case Kind::nf4:
      return "nf4";
    case Kind::e2m1:
      return "e2m1";
    case Kind::e3m0:
      return "e3m0";
    case Kind::top_k:
      return "top_k";
  }
  return "unknown";
}

class KnownCodec final : public Codec {
 public:
  explicit KnownCodec(const WireFormat& format, std::string settings = {})
      : format_(format), description_(name(format.kind) + std::move(settings)) {}

  std::string describe() const override { return description_; }
  Reduction reduction() const override { return format_.kind == Kind::top_k ? Reduction::gather : Reduction::shards; }
  int64_t block() const override { return format_.kind == Kind::top_k ? kernels::wire_tile : format_.block; }
  int64_t wire_bytes(int64_t numel) const override { return kernels::layout(format_, numel).bytes(); }

  void encode(const Tensor& delta, const Tensor& wire, uint64_t key) const override {
    check(delta, wire);
    kernels::encode(format_, delta, wire, key);
  }

  void decode(const Tensor& wire, const Tensor& delta) const override {
    check(delta, wire);
    const std::string damage = kernels::damage(format_, wire, delta.numel());
    TORCH_CHECK(damage.empty(), "a damaged ", description_, " wire: ", damage);
    kernels::decode(format_, wire, delta);
  }

  const WireFormat& format() const { return format_; }

 private:
  void check(const Tensor& delta, const Tensor& wire) const {
    const auto is = [](const Tensor& tensor, at::ScalarType type) {
      return tensor.defined() && tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type;
    };
    const auto what = [](const Tensor& tensor) {
      return !tensor.defined() ? std::string("none")
                               : c10::str(tensor.scalar_type(), tensor.sizes(), " on ", tensor.device(),
                                          tensor.is_contiguous() ? "" : ", not contiguous");
    };
    TORCH_CHECK(is(delta, at::kFloat), description_, ": a delta must be contiguous float32 on the CPU, got ",
                what(delta));
    TORCH_CHECK(is(wire, at::kByte), description_, ": a wire must be contiguous uint8 on the CPU, got ", what(wire));
    TORCH_CHECK(reinterpret_cast<uintptr_t>(wire.const_data_ptr()) % 4 == 0, description_,
                ": a wire must begin at a multiple of 4 bytes");
    TORCH_CHECK(wire.numel() == wire_bytes(delta.numel()), description_, ": a wire of ", delta.numel(),
                " elements has ", wire_bytes(delta.numel()), " bytes, got ", wire.numel());
  }

  WireFormat format_;
  std::string description_;
};

std::shared_ptr<const Codec> plain(Kind kind) { return std::make_shared<KnownCodec>(WireFormat{.kind = kind}); }

std::shared_ptr<const Codec> blocks(Kind kind, int64_t block, Rounding rounding) {
  TORCH_CHECK(block >= 16 && block <= kernels::wire_tile && (block & (block - 1)) == 0, name(kind),
              ": block must be a power of two from 16 to ", kernels::wire_tile, ", got ", block);
  const bool stochastic = rounding == Rounding::stochastic;
  return std::make_shared<KnownCodec>(WireFormat{.kind = kind, .block = block, .stochastic = stochastic},
                                      c10::str("(block ", block, stochastic ? ", stochastic)" : ")"));
}

}  // namespace

std::optional<kernels::WireFormat> codec::known(const Codec& codec) {
  const auto* found = dynamic_cast<const KnownCodec*>(&codec);
  return found ? std::optional(found->format()) : std::nullopt;
}

bool codec::is_plain(const Codec& codec) {
  const auto format = known(codec);
  return format && format->kind == Kind::fp32;
}

namespace codecs {

std::shared_ptr<const Codec> fp32() { return plain(Kind::fp32); }
std::shared_ptr<const Codec> fp16() { return plain(Kind::fp16); }
std::shared_ptr<const Codec> bf16() { return plain(Kind::bf16); }
std::shared_ptr<const Codec> int8(int64_t block, Rounding rounding) { return blocks(Kind::int8, block, rounding); }
std::shared_ptr<const Codec> fp8_e4m3(int64_t block, Rounding rounding) {
  return blocks(Kind::fp8_e4m3, block, rounding);
}
std::shared_ptr<const Codec> int4(int64_t block, Rounding rounding) { return blocks(Kind::int4, block, rounding); }
std::shared_ptr<const Codec> nf4(int64_t block, Rounding rounding) { return blocks(Kind::nf4, block, rounding); }
std::shared_ptr<const Codec> e2m1(int64_t block, Rounding rounding) { return blocks(Kind::e2m1, block, rounding); }
std::shared_ptr<const Codec> e3m0(int64_t block, Rounding rounding) { return blocks(Kind::e3m0, block, rounding); }

std::shared_ptr<const Codec> top_k(double density, int bits) {
  TORCH_CHECK(density > 0 && density <= 1, "top_k: density must be in (0, 1], got ", density);
  TORCH_CHECK(bits == 2 || bits == 8, "top_k: bits must be 2 or 8, got ", bits);
  const auto kept = std::max<int64_t>(1, std::llround(density * kernels::wire_tile));
  return std::make_shared<KnownCodec>(WireFormat{.kind = Kind::top_k, .kept = kept, .bits = bits},
                                      c10::str("(", kept, " of ", kernels::wire_tile, ", ", bits, " bits)"));
}

}  // namespace codecs

}  // namespace outerloop
