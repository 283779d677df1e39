#pragma once

#include <outerloop/codec.hpp>

#include <exception>
#include <initializer_list>
#include <optional>
#include <vector>

#include "kernels/coded.hpp"
#include "round/exchange.hpp"

namespace outerloop::round {

/// How a vector is divided among the ranks that average it: whole blocks to each, the last shorter, or empty. One that
/// is gathered is a single shard.
struct Shards {
  Shards(const Codec& codec, int64_t numel, int ranks);
  int64_t begin(int shard) const { return shard * length < numel ? shard * length : numel; }
  int64_t size(int shard) const { return begin(shard + 1) - begin(shard); }
  Tensor of(const Tensor& flat, int shard) const { return flat.narrow(0, begin(shard), size(shard)); }

  int64_t numel;
  int count;
  int64_t length;
};

/// A key for draws that no other place, round or rank has.
uint64_t draws_of(std::initializer_list<int64_t> which);

/// Deltas of all ranks on their way to the mean, in one codec. Two shots: encode; each rank takes its shard of all
/// wires, adds them up in float32, in the order of ranks, times their weights and the inverse of these weights' sum,
/// and codes that mean again; all take all means, their owners too, so that every rank has the same bits. Or one, where
/// the codec gathers: every rank takes all wires and adds them up itself. A group of one encodes and decodes.
///
/// Every row carries a byte that says whether its sender could make it: what fails on one rank, fails on all.
class CodedWire {
 public:
  CodedWire(const Codec& codec, int64_t numel, int ranks, int rank);

  /// Of draws, from the one that is given on: for each shard that is sent, and for the means.
  static constexpr uint64_t keys = uint64_t{1} << 32;

  /// This rank's wire. It may throw, and then there is none.
  void encode(const Codec& codec, const Tensor& delta, uint64_t key);
  /// What this rank's wire stands for; after average() by shards, the mean.
  void decode(const Codec& codec, const Tensor& delta) const { decode_rows(codec, rows_, delta); }

  /// The kernels know the format, and take rows as they are: the mean too stays coded.
  bool fused() const { return format_.has_value(); }
  kernels::CodedRows rows(uint64_t key) const { return {*format_, rows_, shards_.numel, shards_.length, key}; }
  void have_encoded();  ///< into rows()

  /// What `average` takes from, and gives to, the error feedback of a shard's owner. Undefined without.
  struct Owner {
    Tensor residual;  ///< of the last round
    double decay;
    Tensor next;  ///< of this one
  };
  /// mean <- sum over ranks of weight * delta / sum of the weights, unless it stays coded. Collective, throws
  /// CommError. Returns the first rank that could not do its part, or -1; what it threw goes to `error`, on that rank.
  int average(const Codec& codec, Communicator& comm, const std::vector<double>& weights, const Owner& owner,
              uint64_t key, const Tensor& mean, std::exception_ptr& error);

  const Shards& shards() const { return shards_; }
  int64_t bytes_sent() const;  ///< by this rank, in one average()

 private:
  using Weights = std::vector<double>;
  void add_up(const Codec& codec, const Tensor& rows, const Weights& weights, int shard, const Tensor& sum);
  void check_arrived(int64_t numel) const;
  bool average_shard(const Codec& codec, const Weights& weights, const Owner& owner, uint64_t key);  ///< finite?
  void decode_rows(const Codec& codec, const Tensor& rows, const Tensor& delta) const;
  Tensor wire(const Tensor& rows, int row, int64_t numel, const Codec& codec) const;
  int first_failed(const Tensor& rows) const;

  Shards shards_;
  Reduction reduction_;
  std::optional<kernels::WireFormat> format_;  ///< none of what gathers
  int ranks_, rank_;
  Tensor rows_;       ///< this rank's wire, a row for each shard; then the means
  Tensor arrived_;    ///< of this rank's shard, or of all, from each rank
  Tensor owned_;      ///< the mean of this rank's shard
  Tensor sum_, one_;  ///< float32: of the shard, or of all
};

}  // namespace outerloop::round
