#include "kernels/coded.hpp"

#include <numeric>

#include "kernels/blocks.hpp"
#include "kernels/cpu.hpp"
#include "kernels/wire_loops.hpp"
#include "kernels/wire_tiles.hpp"

namespace outerloop::kernels {

namespace {

using cpu::ConstWire;
using cpu::Wire;

/// One tile of one shard.
struct Tile {
  int64_t shard, number;
  int64_t begin, end;  ///< in the whole vector
  int32_t size() const { return static_cast<int32_t>(end - begin); }
};

/// Sums what body(tile) returns for all tiles, in their order, on at::get_num_threads() threads.
template <class Result, class Body>
Result sum_over_tiles(const CodedRows& rows, const Body& body) {
  if (rows.numel == 0) return {};
  const int64_t size = tile_of(rows.format), in_shard = (rows.length + size - 1) / size;
  const int64_t count = in_shard * rows.rows.size(0);
  std::vector<Result> parts(count);
  at::parallel_for(0, count, cpu::block_size / size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Tile tile{i / in_shard, i % in_shard, 0, 0};
      const int64_t begin = tile.shard * rows.length;
      tile.begin = begin + tile.number * size;
      tile.end = std::min({tile.begin + size, begin + rows.length, rows.numel});
      if (tile.begin < tile.end) parts[i] = body(tile);
    }
  });
  return std::accumulate(parts.begin(), parts.end(), Result{}, [](Result sum, const Result& part) {
    sum += part;
    return sum;
  });
}

template <class Byte>
cpu::WireOf<Byte> wire_of(const CodedRows& rows, int64_t shard) {
  const int64_t begin = shard * rows.length, numel = std::max<int64_t>(0, std::min(rows.length, rows.numel - begin));
  return {rows.format, static_cast<Byte*>(rows.rows.data_ptr()) + shard * rows.rows.stride(0), numel};
}

/// body(residual, next) with pointers of their type, from element `begin` on; not at all without.
template <class Body>
void with_owed(const Owed& owed, int64_t begin, const Body& body) {
  if (!owed.next.defined()) return;
  const auto as = [&]<class T>(T) {
    const auto at = [&](const Tensor& flat) -> T* {
      return flat.defined() ? static_cast<T*>(flat.data_ptr()) + begin : nullptr;
    };
    body(static_cast<const T*>(at(owed.residual)), at(owed.next));
  };
  owed.next.scalar_type() == at::kFloat ? as(float{}) : as(math::Bfloat16{});
}

/// What one tile of a wire does to feedback and sums.
struct Coder {
  const Wire& wire;
  const Tile& tile;
  const Owed& owed;
  int64_t begin;  ///< of the tile in the residuals

  /// Returns how much is not finite then; `non_finite` was before.
  int64_t add_residual(float* sent, int64_t non_finite) const {
    with_owed(owed, begin, [&](const auto* residual, auto*) {
      if (!residual) return;
      cpu::add_run(residual, sent, tile.size(), static_cast<float>(owed.decay));
      non_finite = cpu::count_non_finite(sent, tile.size());
    });
    return non_finite;
  }
  /// Codes what is sent, of which so much is not finite, and keeps what that loses. Returns how much is not when it
  /// arrives.
  int64_t code(const float* sent, int64_t non_finite, uint64_t key) const {
    cpu::encode_tile(wire, tile.number, sent, key);
    const bool halves = wire.format.block == 1;  // which alone may make infinite what was finite
    if (!halves && !owed.next.defined()) return non_finite;
    alignas(64) float arrives[wire_tile];
    cpu::decode_tile({wire.format, wire.data, wire.numel}, tile.number, arrives);
    if (halves) non_finite = cpu::count_non_finite(arrives, tile.size());
    with_owed(owed, begin, [&](const auto*, auto* next) { cpu::lose_run(sent, arrives, next, tile.size()); });
    return non_finite;
  }
};

}  // namespace

Summary send(const Params& params, const Tensor& anchor, const CodedRows& rows, const Owed& owed) {
  const auto* const from = anchor.const_data_ptr<float>();
  return sum_over_tiles<Summary>(rows, [&](const Tile& tile) {
    alignas(64) float sent[wire_tile];
    Summary sum;
    const auto form = [&](const auto* data, int64_t flat, int64_t n) {
      sum += cpu::send_run(from + flat, data, sent + (flat - tile.begin), n, 1.0f, flat);
    };
    // A loop counts on with the lower 32 bits of an element's place.
    const int64_t carry = std::clamp((tile.end - 1) >> 32 << 32, tile.begin, tile.end);
    cpu::for_each_run<float>(params.segments, tile.begin, carry, form);
    cpu::for_each_run<float>(params.segments, carry, tile.end, form);
    const Wire wire = wire_of<uint8_t>(rows, tile.shard);
    const Coder coder{wire, tile, owed, tile.begin};
    sum.non_finite = coder.add_residual(sent, sum.non_finite);
    sum.non_finite = coder.code(sent, sum.non_finite, rows.key + static_cast<uint64_t>(tile.shard));
    return sum;
  });
}

bool reduce(const CodedRows& arrived, const std::vector<double>& weights, const CodedRows& mean, const Owed& owed) {
  const auto inverse = static_cast<float>(1 / std::accumulate(weights.begin(), weights.end(), 0.0));
  const int64_t row = arrived.rows.stride(0);
  const auto* const bytes = arrived.rows.const_data_ptr<uint8_t>();
  return sum_over_tiles<int64_t>(mean, [&](const Tile& tile) {
           alignas(64) float sum[wire_tile], one[wire_tile];
           const int32_t n = tile.size();
           std::fill_n(sum, n, 0.0f);
           for (size_t rank = 0; rank < weights.size(); ++rank) {
             if (weights[rank] == 0) continue;
             cpu::decode_tile({arrived.format, bytes + static_cast<int64_t>(rank) * row, mean.numel}, tile.number, one);
             cpu::add_run(one, sum, n, static_cast<float>(weights[rank]));
           }
           cpu::scale_run(sum, n, inverse);
           const Wire wire = wire_of<uint8_t>(mean, 0);
           const Coder coder{wire, tile, owed, tile.begin};
           const int64_t non_finite = coder.add_residual(sum, cpu::count_non_finite(sum, n));
           return coder.code(sum, non_finite, mean.key);
         }) == 0;
}

double apply(const Params& params, const Tensor& anchor, const Tensor& velocity, const CodedRows& mean,
             const Step& step) {
  auto* const a = anchor.mutable_data_ptr<float>();
  float* const v = velocity.defined() ? velocity.mutable_data_ptr<float>() : nullptr;
  return sum_over_tiles<double>(mean, [&](const Tile& tile) {
    alignas(64) float delta[wire_tile];
    cpu::decode_tile(wire_of<const uint8_t>(mean, tile.shard), tile.number, delta);
    return cpu::apply_range(params.segments, a, v, delta, tile.begin, tile.end, step,
                            anchor.numel() >= cpu::stream_from);
  });
}

}  // namespace outerloop::kernels
