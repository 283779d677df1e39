#include <algorithm>

#include "cuda/launch.hpp"

namespace outerloop::cuda {

namespace {

int64_t element_size(Type type) {
  switch (type) {
    case Type::float64:
      return 8;
    case Type::float32:
      return 4;
    case Type::bfloat16:
    case Type::float16:
      return 2;
  }
  return 0;
}

}  // namespace

std::vector<Chunk> cut(const std::vector<Run>& runs, Type type) {
  std::vector<Chunk> chunks;
  for (const Run& run : runs) {
    for (int64_t begin = 0; begin < run.numel; begin += chunk_size) {
      char* data = static_cast<char*>(run.data) + begin * element_size(type);
      chunks.push_back({data, run.offset + begin, std::min(chunk_size, run.numel - begin)});
    }
  }
  return chunks;
}

}  // namespace outerloop::cuda
