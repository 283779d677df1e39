#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace outerloop::testing {

inline std::filesystem::path source_dir() { return OUTERLOOP_SOURCE_DIR; }

inline std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Files under the project's folder (or file) `under`, as paths from the project's root with `/`, sorted.
inline std::vector<std::string> files_under(const std::filesystem::path& under) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  if (fs::is_regular_file(source_dir() / under)) found.push_back(under.generic_string());
  if (fs::is_directory(source_dir() / under)) {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / under)) {
      if (entry.is_regular_file()) found.push_back(fs::relative(entry.path(), source_dir()).generic_string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace outerloop::testing
