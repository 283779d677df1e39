#include "round/coded_wire.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>

#include "codec/known.hpp"
#include "kernels/kernels.hpp"

namespace outerloop::round {

namespace {

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// With the byte that tells whether it holds anything, and so that the next row begins where any type may.
int64_t row_bytes(const Codec& codec, const Shards& shards) {
  return divided_up(codec.wire_bytes(shards.size(0)) + 1, 16) * 16;
}

void mark(const Tensor& rows, bool valid) { rows.view({-1, rows.size(-1)}).select(1, -1).fill_(valid ? 1 : 0); }

/// sum <- sum + factor * other, as the kernels multiply and add.
void add(const Tensor& sum, const Tensor& other, double factor) { kernels::step(sum, {}, other, {.lr = -factor}); }

}  // namespace

uint64_t draws_of(std::initializer_list<int64_t> which) {
  return XXH3_64bits(which.begin(), which.size() * sizeof(int64_t));
}

Shards::Shards(const Codec& codec, int64_t numel, int ranks)
    : numel(numel), count(codec.reduction() == Reduction::gather ? 1 : ranks) {
  const int64_t block = codec.block();
  TORCH_CHECK(block >= 1, codec.describe(), ": block() must be >= 1, got ", block);
  length = std::min(numel, divided_up(divided_up(numel, count), block) * block);
}

CodedWire::CodedWire(const Codec& codec, int64_t numel, int ranks, int rank)
    : shards_(codec, numel, ranks), reduction_(codec.reduction()), ranks_(ranks), rank_(rank) {
  if (reduction_ == Reduction::shards) format_ = codec::known(codec);
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const int64_t row = row_bytes(codec, shards_);
  rows_ = at::zeros({shards_.count, row}, bytes);
  if (ranks == 1) return;
  if (!format_) {
    sum_ = at::empty({shards_.length});
    one_ = at::empty({shards_.length});
  }
  arrived_ = at::zeros({ranks, row}, bytes);
  if (reduction_ == Reduction::shards) owned_ = at::zeros({row}, bytes);
}

Tensor CodedWire::wire(const Tensor& rows, int row, int64_t numel, const Codec& codec) const {
  return rows[row].narrow(0, 0, codec.wire_bytes(numel));
}

void CodedWire::encode(const Codec& codec, const Tensor& delta, uint64_t key) {
  mark(rows_, false);
  for (int shard = 0; shard < shards_.count; ++shard) {
    codec.encode(shards_.of(delta, shard), wire(rows_, shard, shards_.size(shard), codec), key + shard);
  }
  mark(rows_, true);
}

void CodedWire::have_encoded() { mark(rows_, true); }

void CodedWire::decode_rows(const Codec& codec, const Tensor& rows, const Tensor& delta) const {
  for (int shard = 0; shard < shards_.count; ++shard) {
    codec.decode(wire(rows, shard, shards_.size(shard), codec), shards_.of(delta, shard));
  }
}

/// In the order of ranks; sum is float32 of the shard.
void CodedWire::add_up(const Codec& codec, const Tensor& rows, const Weights& weights, int shard, const Tensor& sum) {
  const Tensor one = one_.narrow(0, 0, sum.numel());
  sum.zero_();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (weights[rank] == 0) continue;
    codec.decode(wire(rows, rank, shards_.size(shard), codec), one);
    add(sum, one, weights[rank]);
  }
  sum.mul_(1 / std::accumulate(weights.begin(), weights.end(), 0.0));
}

/// What is not finite shows in the mean; what cannot be a scale might not.
void CodedWire::check_arrived(int64_t numel) const {
  if (format_->block == 1) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string damage = kernels::damage(*format_, arrived_[rank], numel);
    TORCH_CHECK(damage.empty(), "a damaged wire of rank ", rank, ": ", damage);
  }
}

bool CodedWire::average_shard(const Codec& codec, const Weights& weights, const Owner& owner, uint64_t key) {
  const int64_t numel = shards_.size(rank_);
  if (format_) {
    check_arrived(numel);
    return kernels::reduce({*format_, arrived_, numel, numel}, weights,
                           {*format_, owned_.unsqueeze(0), numel, numel, key + static_cast<uint64_t>(shards_.count)},
                           {owner.residual, owner.next, owner.decay});
  }
  const Tensor sum = sum_.narrow(0, 0, numel), one = one_.narrow(0, 0, numel);
  const Tensor mean = wire(owned_.unsqueeze(0), 0, numel, codec);
  add_up(codec, arrived_, weights, rank_, sum);
  if (owner.residual.defined()) add(sum, owner.residual.to(at::kFloat), owner.decay);
  if (kernels::summarize(sum).non_finite > 0) return false;
  codec.encode(sum, mean, key + static_cast<uint64_t>(shards_.count));
  codec.decode(mean, one);  // what cannot be read here, can nowhere
  Tensor next = owner.next;
  if (next.defined()) at::sub_out(next, sum, one);
  return true;
}

int CodedWire::first_failed(const Tensor& rows) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rows[rank][-1].item<int>() != 1) return rank;
  }
  return -1;
}

int CodedWire::average(const Codec& codec, Communicator& comm, const Weights& weights, const Owner& owner, uint64_t key,
                       const Tensor& mean, std::exception_ptr& error) {
  if (ranks_ == 1) {
    if (!format_) decode_rows(codec, rows_, mean);
    return -1;
  }
  const auto attempt = [&](const auto& part) {
    try {
      return part();
    } catch (...) {
      if (!error) error = std::current_exception();
      return false;
    }
  };
  if (reduction_ == Reduction::gather) {
    comm.all_gather(arrived_, rows_).wait();
    if (const int failed = first_failed(arrived_); failed >= 0) return failed;
    const bool added = attempt([&] {
      add_up(codec, arrived_, weights, 0, mean);
      return kernels::summarize(mean).non_finite == 0;
    });
    const Tensor mine = at::zeros({1}, rows_.options()), all = at::zeros({ranks_, 1}, rows_.options());
    mark(mine, added);
    comm.all_gather(all, mine).wait();
    return first_failed(all);
  }
  comm.all_to_all(arrived_, rows_).wait();
  // A rank that could not code its own says so to every owner; none of them codes a mean then.
  const int failed = first_failed(arrived_);
  mark(owned_, failed < 0 && attempt([&] { return average_shard(codec, weights, owner, key); }));
  comm.all_gather(rows_, owned_).wait();
  if (failed >= 0) return failed;
  if (const int unable = first_failed(rows_); unable >= 0) return unable;
  if (!format_) decode_rows(codec, rows_, mean);
  return -1;
}

int64_t CodedWire::bytes_sent() const {
  if (ranks_ == 1) return 0;
  const int64_t row = rows_.size(1);
  return (ranks_ - 1) * (reduction_ == Reduction::gather ? row + 1 : 2 * row);
}

}  // namespace outerloop::round
