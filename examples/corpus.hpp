#pragma once

#include <ATen/Tensor.h>

#include <random>
#include <string>
#include <vector>

/// Windows of a text as bytes: `target` is `input` one byte further on. int64, [windows, context]; made on the CPU, so
/// that every device gets the same.
struct Batch {
  at::Tensor input, target;
  Batch to(at::Device device) const { return {input.to(device), target.to(device)}; }
};
Batch windows_of(const std::string& text, const std::vector<size_t>& starts, int64_t context);

/// A text split into blocks of 4 KiB: every 20th is for validation, the others are dealt out to the shards in turn, so
/// that the shards and the validation text are alike and have no byte in common.
class Corpus {
 public:
  /// Throws BadInput if the file cannot be read or is too short for so many shards.
  Corpus(const std::string& path, int shards);

  const std::string& shard(int index) const { return shards_.at(index); }
  const std::string& validation() const { return validation_; }
  /// Starts of `count` windows over the whole validation text, at a fixed stride.
  std::vector<size_t> validation_starts(int64_t count, int64_t context) const;

 private:
  std::string validation_;
  std::vector<std::string> shards_;
};

/// Windows at random places of a shard. The same shard, seed and rank give the same batches, whatever the mode.
class Batches {
 public:
  Batches(const std::string& shard, int64_t batch, int64_t context, int64_t seed, int rank);
  Batch next();

 private:
  const std::string& shard_;
  const int64_t batch_, context_;
  std::mt19937_64 random_;
};
