#include "kernels/wires.hpp"

#include <ATen/Parallel.h>

#include <mutex>

#include "kernels/wire_tiles.hpp"

namespace outerloop::kernels {

namespace {

/// work(tile) on all tiles, several to a task.
template <class Work>
void for_each_tile(int64_t tiles, const Work& work) {
  constexpr int64_t at_a_time = 64;
  at::parallel_for(0, tiles, at_a_time, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) work(tile);
  });
}

}  // namespace

void encode(const WireFormat& format, const Tensor& delta, const Tensor& wire, uint64_t key) {
  const cpu::Wire out(format, wire.mutable_data_ptr<uint8_t>(), delta.numel());
  const float* const values = delta.const_data_ptr<float>();
  for_each_tile(out.tiles(), [&](int64_t tile) { cpu::encode_tile(out, tile, values + out.begin(tile), key); });
}

void decode(const WireFormat& format, const Tensor& wire, const Tensor& delta) {
  const cpu::ConstWire in(format, wire.const_data_ptr<uint8_t>(), delta.numel());
  float* const values = delta.mutable_data_ptr<float>();
  for_each_tile(in.tiles(), [&](int64_t tile) { cpu::decode_tile(in, tile, values + in.begin(tile)); });
}

std::string damage(const WireFormat& format, const Tensor& wire, int64_t numel) {
  const cpu::ConstWire in(format, wire.const_data_ptr<uint8_t>(), numel);
  std::string first;
  int64_t where = in.tiles();
  std::mutex mutex;
  for_each_tile(in.tiles(), [&](int64_t tile) {
    std::string found = cpu::damage_of_tile(in, tile);
    if (found.empty()) return;
    const std::lock_guard lock(mutex);
    if (tile >= where) return;
    where = tile;
    first = std::move(found);
  });
  return first;
}

}  // namespace outerloop::kernels
