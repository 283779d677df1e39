#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "round/fragment.hpp"

/// A fragment piece by piece.

namespace outerloop::round {

namespace {

/// Elements of a piece: enough to pay for a collective of its own. A multiple of the kernels' blocks.
constexpr int64_t piece_size = int64_t{1} << 21;

/// Elements [begin, end) of a flat vector, as one of their own.
kernels::Segments part_of(const kernels::Segments& segments, int64_t begin, int64_t end) {
  kernels::Segments part;
  for (const kernels::Segment& segment : segments) {
    const int64_t first = std::max(begin, segment.offset), last = std::min(end, segment.offset + segment.numel);
    if (first >= last) continue;
    const auto bytes = (first - segment.offset) * static_cast<int64_t>(c10::elementSize(segment.dtype));
    part.push_back({static_cast<char*>(segment.data) + bytes, segment.dtype, first - begin, last - first});
  }
  return part;
}

/// body(begin, end) for each piece of a vector.
template <class Body>
void for_each_piece(int64_t numel, const Body& body) {
  for (int64_t begin = 0; begin < numel; begin += piece_size) body(begin, std::min(begin + piece_size, numel));
}

}  // namespace

int64_t bytes_sent(const Wires& wires, int replicas) {
  int64_t sum = 0;
  for (const Tensor& wire : wires) sum += static_cast<int64_t>(wire.nbytes());
  return all_reduce_bytes(sum, replicas);
}

Pending reduce(const Tensor& piece, size_t number, Exchange& exchange) {
  const auto lanes = exchange.from(piece.device()).lanes();
  return lanes[number % lanes.size()]->all_reduce_sum(piece);
}

void reduce(const Wires& wires, Exchange& exchange) {
  RECORD_FUNCTION("outerloop::reduce", {});
  if (exchange.size() == 1) return;
  std::vector<Pending> sums;
  for (const Tensor& wire : wires) {
    Communicator& comm = exchange.from(wire.device());
    if (comm.lanes().empty()) {
      sums.push_back(comm.all_reduce_sum(wire));
      continue;
    }
    for_each_piece(wire.numel(), [&](int64_t begin, int64_t end) {
      sums.push_back(reduce(wire.narrow(0, begin, end - begin), sums.size(), exchange));
    });
  }
  for (Pending& sum : sums) sum.wait();
}

std::vector<Piece>& Fragment::pieces() {
  size_t number = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const kernels::Params& params = buckets_[i].params.impl().pull();
    for_each_piece(buckets_[i].params.numel(), [&](int64_t begin, int64_t end) {
      if (number == pieces_.size()) pieces_.push_back({i, begin, end - begin});
      Piece& piece = pieces_[number++];
      piece.params.device = params.device;
      piece.params.segments = part_of(params.segments, begin, end);
    });
  }
  return pieces_;
}

Wires Fragment::take_velocities() {
  return buckets_.empty() || buckets_[0].state.slots.empty() ? Wires{} : take_wires();
}

kernels::Summary Fragment::send(Piece& piece, const Wires& wires, double weight) {
  RECORD_FUNCTION("outerloop::send", {});
  const Tensor anchor = piece.of(buckets_[piece.bucket].state.anchor);
  return kernels::send(piece.params, anchor, piece.of(wires[piece.bucket]), weight);
}

void Fragment::step(const Piece& piece, const Wires& wires, Stepped& stepped, const kernels::Step& step,
                    bool wants_norm) const {
  RECORD_FUNCTION("outerloop::apply", {});
  const OuterState& state = buckets_[piece.bucket].state;
  Tensor velocity, next_velocity;
  if (!stepped.velocities.empty()) {
    velocity = piece.of(state.slots[0]);
    next_velocity = piece.of(stepped.velocities[piece.bucket]);
  }
  double sum_squares = 0;
  kernels::step_apart(piece.of(state.anchor), velocity, piece.of(wires[piece.bucket]), next_velocity, step,
                      wants_norm ? &sum_squares : nullptr);
  stepped.sum_squares += sum_squares;
}

void Fragment::take(Wires& wires, Stepped& stepped, double keep_local) {
  RECORD_FUNCTION("outerloop::apply", {});
  pull();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    OuterState& state = buckets_[i].state;
    std::swap(state.anchor, wires[i]);
    if (!stepped.velocities.empty()) std::swap(state.slots[0], stepped.velocities[i]);
  }
  scatter(keep_local);
}

}  // namespace outerloop::round
