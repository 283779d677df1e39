#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace outerloop::testing {

/// A folder of its own, removed with what is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "outerloop-XXXXXX").string();  // for mkdtemp to fill in
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace outerloop::testing
