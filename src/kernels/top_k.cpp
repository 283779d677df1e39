#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "kernels/wire_loops.hpp"
#include "kernels/wire_tiles.hpp"

/// Chunks of top_k: indices in ascending order, then values. With 2 bits a value is a sign and one of two magnitudes:
/// the means of those kept that are below, and above, the middle between the smallest and the largest.

namespace outerloop::kernels::cpu {

namespace {

using Int8 = formats::Int8;

/// Where the parts of a chunk lie.
template <class Byte>
struct Chunk {
  Chunk(const WireOf<Byte>& wire, int64_t number)
      : kept(static_cast<int32_t>(kept_of(wire.format, wire.size(number)))),
        bits(wire.format.bits),
        indices(wire.data + number * ((wire.format.kept * index_bits + 7) / 8)),
        codes(wire.data + wire.parts.indices + number * ((wire.format.kept * bits + 7) / 8)),
        scales(wire.data + wire.parts.indices + wire.parts.codes + number * wire.parts.scale_bytes) {}
  int32_t kept;
  int bits;
  Byte *indices, *codes, *scales;
};

void put_bits(uint8_t* bytes, int64_t at, int bits, uint32_t value) {
  for (int done = 0; done < bits;) {
    const int shift = static_cast<int>((at + done) % 8);
    bytes[(at + done) / 8] |= static_cast<uint8_t>(value >> done << shift);
    done += 8 - shift;
  }
}

uint32_t get_bits(const uint8_t* bytes, int64_t at, int bits) {
  uint32_t value = 0;
  for (int done = 0; done < bits;) {
    const int shift = static_cast<int>((at + done) % 8);
    value |= static_cast<uint32_t>(bytes[(at + done) / 8] >> shift) << done;
    done += 8 - shift;
  }
  return value & ((1u << bits) - 1u);
}

/// The places of the `kept` largest magnitudes, ascending; of equal ones the first. By magnitude and place in one word.
void choose(const float* values, int32_t n, int32_t kept, uint32_t* places) {
  uint64_t keys[wire_tile];
  for (int32_t i = 0; i < n; ++i) {
    const uint64_t magnitude = math::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
    keys[i] = magnitude << index_bits | static_cast<uint64_t>(wire_tile - 1 - i);
  }
  if (kept < n) std::nth_element(keys, keys + kept, keys + n, std::greater<>());
  for (int32_t j = 0; j < kept; ++j) places[j] = static_cast<uint32_t>(wire_tile - 1 - keys[j] % wire_tile);
  std::sort(places, places + kept);
}

struct Levels {
  float low = 0, high = 0;
};

/// A mean that is as good as zero is zero. Of float64, as a sum of the largest float32 would be infinite.
float mean(double sum, int32_t count) {
  const auto value = static_cast<float>(sum / count);
  return value < formats::least_magnitude ? 0.0f : value;
}

/// The two magnitudes; codes[j] <- whether the upper one is meant.
Levels levels_of(const float* values, const uint32_t* places, int32_t kept, uint32_t* codes) {
  float least = INFINITY, largest = 0;
  for (int32_t j = 0; j < kept; ++j) {
    const float magnitude = formats::magnitude_of(values[places[j]]);
    least = magnitude < least ? magnitude : least;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float middle = 0.5f * least + 0.5f * largest;
  double sums[2] = {0, 0};
  int32_t counts[2] = {0, 0};
  for (int32_t j = 0; j < kept; ++j) {
    const float magnitude = formats::magnitude_of(values[places[j]]);
    codes[j] = magnitude > middle ? 1 : 0;
    sums[codes[j]] += magnitude;
    ++counts[codes[j]];
  }
  const float low = counts[0] ? mean(sums[0], counts[0]) : 0;
  return {low, counts[1] ? mean(sums[1], counts[1]) : low};
}

/// visit(index in the chunk, value) of all that were kept.
template <class Visit>
void for_each_kept(const ConstWire& wire, int64_t number, const Visit& visit) {
  const Chunk<const uint8_t> chunk(wire, number);
  float scales[2] = {0, 0};
  std::memcpy(scales, chunk.scales, static_cast<size_t>(wire.parts.scale_bytes));
  for (int32_t j = 0; j < chunk.kept; ++j) {
    const uint32_t code = get_bits(chunk.codes, j * chunk.bits, chunk.bits);
    visit(get_bits(chunk.indices, j * index_bits, index_bits),
          chunk.bits == 2 ? (code >> 1 ? -1.0f : 1.0f) * scales[code & 1u] : Int8::value(code) * scales[0]);
  }
}

}  // namespace

void encode_chunk(const Wire& wire, int64_t number, const float* values) {
  const Chunk<uint8_t> chunk(wire, number);
  uint32_t places[wire_tile], codes[wire_tile];
  choose(values, wire.size(number), chunk.kept, places);
  if (chunk.bits == 2) {
    const Levels levels = levels_of(values, places, chunk.kept, codes);
    std::memcpy(chunk.scales, &levels, sizeof(levels));
    for (int32_t j = 0; j < chunk.kept; ++j) codes[j] |= formats::sign_of(values[places[j]]) << 1;
  } else {
    uint32_t largest = 0;
    for (int32_t j = 0; j < chunk.kept; ++j) largest = std::max(largest, largest_of(values + places[j], 1));
    const auto scale = formats::scale_of<float>(largest, Int8::top);
    const float inverse = formats::inverse_of(scale);
    std::memcpy(chunk.scales, &scale, sizeof(scale));
    for (int32_t j = 0; j < chunk.kept; ++j) codes[j] = Int8::code(values[places[j]] * inverse, formats::Nearest{});
  }
  const size_t kept = static_cast<uint32_t>(chunk.kept);
  std::memset(chunk.indices, 0, (kept * index_bits + 7) / 8);
  std::memset(chunk.codes, 0, (kept * static_cast<uint32_t>(chunk.bits) + 7) / 8);
  for (int32_t j = 0; j < chunk.kept; ++j) {
    put_bits(chunk.indices, j * index_bits, index_bits, places[j]);
    put_bits(chunk.codes, j * chunk.bits, chunk.bits, codes[j]);
  }
}

void decode_chunk(const ConstWire& wire, int64_t number, float* values) {
  std::fill_n(values, wire.size(number), 0.0f);
  for_each_kept(wire, number, [&](uint32_t index, float value) { values[index] = value; });
}

void add_chunk(const ConstWire& wire, int64_t number, float weight, float* sum) {
  for_each_kept(wire, number,
                [&](uint32_t index, float value) { sum[index] = math::multiply_add(weight, value, sum[index]); });
}

std::string damage_of_chunk(const ConstWire& wire, int64_t number) {
  const Chunk<const uint8_t> chunk(wire, number);
  float scales[2] = {0, 0};
  std::memcpy(scales, chunk.scales, static_cast<size_t>(wire.parts.scale_bytes));
  for (const float scale : scales) {
    if (formats::is_scale(scale)) continue;
    return c10::str("a scale of chunk ", number, " is ", scale, "; it must be finite and not negative");
  }
  int64_t before = -1;
  for (int32_t j = 0; j < chunk.kept; ++j) {
    const auto index = static_cast<int64_t>(get_bits(chunk.indices, j * index_bits, index_bits));
    if (index > before && index < wire.size(number)) {
      before = index;
      continue;
    }
    return c10::str("index ", j, " of chunk ", number, " is ", index, "; indices must ascend, below ",
                    wire.size(number));
  }
  return {};
}

}  // namespace outerloop::kernels::cpu
