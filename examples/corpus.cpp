#include "corpus.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "options.hpp"

namespace {

constexpr size_t block = 4096;
constexpr size_t validation_period = 20, validation_block = 10;

/// Enough for a validation block, and for a whole block in every shard.
size_t bytes_needed(int shards) { return block * std::max<size_t>(16, 2 * static_cast<size_t>(shards)); }

std::string read(const std::string& path) {
  if (!std::filesystem::exists(path)) throw BadInput("--data " + path + ": there is no such file");
  if (!std::filesystem::is_regular_file(path)) throw BadInput("--data " + path + ": is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BadInput("--data " + path + ": cannot be opened for reading");
  std::ostringstream text;
  if (std::filesystem::file_size(path) > 0 && !(text << file.rdbuf())) {
    throw BadInput("--data " + path + ": cannot be read");
  }
  return std::move(text).str();
}

}  // namespace

Batch windows_of(const std::string& text, const std::vector<size_t>& starts, int64_t context) {
  const auto rows = static_cast<int64_t>(starts.size());
  const at::Tensor bytes = at::empty({rows, context + 1}, at::kLong);
  int64_t* out = bytes.mutable_data_ptr<int64_t>();
  for (const size_t start : starts) {
    out = std::transform(text.begin() + start, text.begin() + start + context + 1, out,
                         [](char byte) { return static_cast<unsigned char>(byte); });
  }
  return {bytes.narrow(1, 0, context), bytes.narrow(1, 1, context)};
}

Corpus::Corpus(const std::string& path, int shards) : shards_(shards) {
  const std::string text = read(path);
  if (text.empty()) throw BadInput("--data " + path + ": is empty");
  if (text.size() < bytes_needed(shards)) {
    throw BadInput("--data " + path + ": has " + std::to_string(text.size()) + " bytes, too few: " +
                   std::to_string(shards) + " replicas need at least " + std::to_string(bytes_needed(shards)));
  }
  size_t dealt = 0;
  for (size_t i = 0; i * block < text.size(); ++i) {
    const bool validates = i % validation_period == validation_block;
    (validates ? validation_ : shards_[dealt++ % shards_.size()]).append(text, i * block, block);
  }
}

std::vector<size_t> Corpus::validation_starts(int64_t count, int64_t context) const {
  const size_t stride = (validation_.size() - context - 1) / count;
  std::vector<size_t> starts(count);
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = i * stride;
  return starts;
}

Batches::Batches(const std::string& shard, int64_t batch, int64_t context, int64_t seed, int rank)
    : shard_(shard), batch_(batch), context_(context) {
  std::seed_seq numbers{seed, seed >> 32, static_cast<int64_t>(rank)};
  random_.seed(numbers);
}

Batch Batches::next() {
  std::vector<size_t> starts(batch_);
  for (size_t& start : starts) start = random_() % (shard_.size() - context_);
  return windows_of(shard_, starts, context_);
}
