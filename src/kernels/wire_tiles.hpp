#pragma once

#include <cstdint>
#include <string>

#include "kernels/wires.hpp"

/// Wires on the CPU, tile by tile.

namespace outerloop::kernels::cpu {

/// A wire in memory, of whole tiles but for the last.
template <class Byte>
struct WireOf {
  WireOf(const WireFormat& format, Byte* data, int64_t numel)
      : format(format), data(data), numel(numel), tile(tile_of(format)), parts(layout(format, numel)) {}
  int64_t tiles() const { return (numel + tile - 1) / tile; }
  int64_t begin(int64_t number) const { return number * tile; }
  int32_t size(int64_t number) const {
    const int64_t left = numel - begin(number);
    return static_cast<int32_t>(left < tile ? left : tile);
  }
  const WireFormat& format;
  Byte* data;
  int64_t numel, tile;
  WireLayout parts;
};
using Wire = WireOf<uint8_t>;
using ConstWire = WireOf<const uint8_t>;

/// wire <- values, of one tile; both have its size.
void encode_tile(const Wire& wire, int64_t tile, const float* values, uint64_t key);
/// values <- wire
void decode_tile(const ConstWire& wire, int64_t tile, float* values);
/// See damage().
std::string damage_of_tile(const ConstWire& wire, int64_t tile);

// top_k, whose tiles are its chunks: top_k.cpp.
void encode_chunk(const Wire& wire, int64_t chunk, const float* values);
void decode_chunk(const ConstWire& wire, int64_t chunk, float* values);
void add_chunk(const ConstWire& wire, int64_t chunk, float weight, float* sum);  ///< sum += weight * wire
std::string damage_of_chunk(const ConstWire& wire, int64_t chunk);

}  // namespace outerloop::kernels::cpu
