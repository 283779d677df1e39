#include "kernels/wire_tiles.hpp"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "kernels/wire_loops.hpp"

namespace outerloop::kernels {

namespace {

using Kind = WireFormat::Kind;

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Scales begin where a float may.
int64_t aligned(int64_t bytes) { return divided_up(bytes, 4) * 4; }

int64_t element_bits(Kind kind) {
  switch (kind) {
    case Kind::fp32:
      return 32;
    case Kind::fp16:
    case Kind::bf16:
      return 16;
    case Kind::int8:
    case Kind::fp8_e4m3:
      return 8;
    default:
      return 4;
  }
}

int64_t scale_bytes(Kind kind) { return kind == Kind::int4 || kind == Kind::nf4 || kind == Kind::e2m1 ? 2 : 4; }

}  // namespace

int64_t kept_of(const WireFormat& format, int64_t numel) {
  return std::min(format.kept, divided_up(format.kept * numel, wire_tile));
}

WireLayout layout(const WireFormat& format, int64_t numel) {
  if (format.kind == Kind::top_k) {
    const int64_t whole = numel / wire_tile, chunks = divided_up(numel, wire_tile);
    const auto of_all = [&](int64_t bits) {
      const int64_t last = divided_up(kept_of(format, numel % wire_tile) * bits, 8);
      return whole * divided_up(format.kept * bits, 8) + last;
    };
    const int64_t indices = of_all(index_bits);
    return {indices, aligned(indices + of_all(format.bits)) - indices, chunks, format.bits == 2 ? 8 : 4};
  }
  const int64_t codes = divided_up(numel * element_bits(format.kind), 8);
  if (format.block == 1) return {0, codes, 0, 0};
  return {0, aligned(codes), divided_up(numel, format.block), scale_bytes(format.kind)};
}

namespace cpu {

namespace {

/// body(Format{}) with the format of a kind that has blocks.
template <class Body>
auto with_format(Kind kind, const Body& body) {
  switch (kind) {
    case Kind::int8:
      return body(formats::Int8{});
    case Kind::fp8_e4m3:
      return body(formats::E4m3{});
    case Kind::int4:
      return body(formats::Int4{});
    case Kind::nf4:
      return body(formats::Nf4{});
    case Kind::e2m1:
      return body(formats::E2m1{});
    case Kind::e3m0:
      return body(formats::E3m0{});
    default:
      TORCH_INTERNAL_ASSERT(false, "no blocks in a wire of kind ", static_cast<int>(kind));
  }
}

/// body(first element of the tile in the wire) with the type of a kind that has none.
template <class Byte, class Body>
void with_elements(const WireOf<Byte>& wire, int64_t tile, const Body& body) {
  const auto at = [&]<class T>(T) {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    body(reinterpret_cast<Element*>(wire.data) + wire.begin(tile));
  };
  switch (wire.format.kind) {
    case Kind::fp16:
      return at(math::Float16{});
    case Kind::bf16:
      return at(math::Bfloat16{});
    default:
      return at(float{});
  }
}

/// The tile's codes and scales.
template <class Byte>
std::pair<Byte*, Byte*> parts_of(const WireOf<Byte>& wire, int64_t tile) {
  const int64_t first_scale = wire.begin(tile) / wire.format.block;
  return {wire.data + wire.begin(tile) * element_bits(wire.format.kind) / 8,
          wire.data + wire.parts.codes + first_scale * wire.parts.scale_bytes};
}

}  // namespace

void encode_tile(const Wire& wire, int64_t tile, const float* values, uint64_t key) {
  if (wire.format.kind == Kind::top_k) return encode_chunk(wire, tile, values);
  const int32_t n = wire.size(tile);
  if (wire.format.block == 1) {
    return with_elements(wire, tile, [&](auto* elements) { narrow_run(values, elements, n); });
  }
  const auto block = static_cast<int32_t>(wire.format.block);
  const auto [codes, scales] = parts_of(wire, tile);
  with_format(wire.format.kind, [&, codes = codes, scales = scales](auto format) {
    using Format = decltype(format);
    if (wire.format.stochastic) {
      encode_blocks_drawn<Format>(values, n, block, codes, scales, key, wire.begin(tile));
    } else {
      encode_blocks<Format>(values, n, block, codes, scales);
    }
  });
}

void decode_tile(const ConstWire& wire, int64_t tile, float* values) {
  if (wire.format.kind == Kind::top_k) return decode_chunk(wire, tile, values);
  const int32_t n = wire.size(tile);
  if (wire.format.block == 1) {
    return with_elements(wire, tile, [&](const auto* elements) { widen_run(elements, values, n); });
  }
  const auto [codes, scales] = parts_of(wire, tile);
  with_format(wire.format.kind, [&, codes = codes, scales = scales](auto format) {
    decode_blocks<decltype(format)>(codes, scales, n, static_cast<int32_t>(wire.format.block), values);
  });
}

std::string damage_of_tile(const ConstWire& wire, int64_t tile) {
  if (wire.format.kind == Kind::top_k) return damage_of_chunk(wire, tile);
  const int32_t n = wire.size(tile);
  std::string found;
  if (wire.format.block == 1) {
    with_elements(wire, tile, [&](const auto* elements) {
      for (int32_t i = 0; i < n && found.empty(); ++i) {
        const float value = math::widen(elements[i]);
        if (!math::is_finite(value)) found = c10::str("element ", wire.begin(tile) + i, " is ", value);
      }
    });
    return found;
  }
  const uint8_t* const scales = parts_of(wire, tile).second;
  with_format(wire.format.kind, [&](auto format) {
    using Scale = typename decltype(format)::Scale;
    for (int64_t block = 0; block * wire.format.block < n && found.empty(); ++block) {
      Scale stored;
      std::memcpy(&stored, scales + block * sizeof(Scale), sizeof(Scale));
      const float scale = math::widen(stored);
      if (formats::is_scale(scale)) continue;
      found = c10::str("the scale of block ", wire.begin(tile) / wire.format.block + block, " is ", scale,
                       "; it must be finite and not negative");
    }
  });
  return found;
}

}  // namespace cpu

}  // namespace outerloop::kernels
