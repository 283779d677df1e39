#include <outerloop/c10d.hpp>
#include <outerloop/outerloop.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

/// One include is enough for all of the library but c10d.hpp, which needs a libtorch with c10d.

namespace outerloop::testing {
namespace {

TEST(Headers, TheUmbrellaIncludesEveryPublicHeaderThatIsForTrainingLoops) {
  const std::filesystem::path folder = OUTERLOOP_SOURCE_DIR "/include/outerloop";
  std::set<std::string> expected;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) expected.insert(entry.path().filename());
  for (const auto* other : {"outerloop.hpp", "c10d.hpp", "formats.hpp", "math.hpp", "random.hpp", "rounding.hpp",
                            "wire_formats.hpp", "wire_scales.hpp"})
    EXPECT_EQ(expected.erase(other), 1) << other;

  std::set<std::string> included;
  std::ifstream umbrella(folder / "outerloop.hpp");
  const std::string begin = "#include <outerloop/";
  for (std::string line; std::getline(umbrella, line);) {
    if (line.rfind(begin, 0) == 0) included.insert(line.substr(begin.size(), line.size() - begin.size() - 1));
  }
  EXPECT_EQ(included, expected);
}

}  // namespace
}  // namespace outerloop::testing
