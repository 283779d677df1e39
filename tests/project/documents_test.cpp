#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "project/files.hpp"

namespace outerloop::testing {
namespace {

std::set<std::string> captures(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

TEST(Documents, MapOfSrcNamesEveryFolder) {
  const auto map = read(source_dir() / "src/README.md");
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "src")) {
    if (!entry.is_directory()) continue;
    const auto name = entry.path().filename().string();
    EXPECT_NE(map.find("`" + name + "/`"), std::string::npos)
        << "src/README.md does not say what src/" << name << " is";
    ++folders;
  }
  EXPECT_GE(folders, 7);
}

TEST(Documents, EveryBlockOfTheReadmeIsRunByARecipe) {
  std::string recipes;
  for (const auto& file : files_under("tests/recipes")) recipes += read(source_dir() / file);
  const auto blocks = captures(read(source_dir() / "README.md"), R"(<!-- code: (\w+) -->)");
  EXPECT_FALSE(blocks.empty());
  EXPECT_EQ(captures(recipes, R"rx(#include "readme/(\w+)\.inc")rx"), blocks);
}

/// Rows of the options table read | `sync.name` | `default` | meaning |.
TEST(Documents, OptionsInTheReadmeAreThoseOfTheHeadersWithTheirDefaults) {
  std::string headers;
  for (const char* name : {"diloco", "sync_options", "fragments"})
    headers += read(source_dir() / "include/outerloop" / (name + std::string(".hpp")));
  headers = std::regex_replace(headers, std::regex(R"( =\s+)"), " = ");  // undoes line breaks
  std::set<std::string> options = captures(headers, R"rx(\n  [^ /\n][^/;\n]* (\w+ = [^;()\n]+(?:\(\))?);)rx");
  EXPECT_TRUE(options.contains("outer_momentum = 0.9"));
  options.erase("streaming = {}");  // its members have rows of their own
  options.erase("sync = {}");
  options.erase("decay = 1");  // of error_feedback, told in its row
  options.erase("residual = at::kFloat");

  const auto readme = read(source_dir() / "README.md");
  static const std::regex row(R"rx(\n\| `(?:\w+\.)?(\w+)` \| `([^`]+)` \|)rx");
  std::set<std::string> rows;
  for (std::sregex_iterator at(readme.begin(), readme.end(), row), end; at != end; ++at) {
    rows.insert((*at)[1].str() + " = " + (*at)[2].str());
  }
  EXPECT_EQ(rows, options);
}

TEST(Documents, NoFileHoldsAPathOfOneMachine) {
  static const std::regex path(R"rx((^|[^\w.~-])/(home|work|root|farm|mnt|Users)/)rx");
  EXPECT_TRUE(std::regex_search(std::string("see /") + "home/me/x", path));
  EXPECT_FALSE(std::regex_search(std::string("lib/wo") + "rk/x and ~/ho" + "me/", path));
  size_t seen = 0;
  for (const char* part : {"include", "src", "cuda", "tests", "bench", "examples", "scripts", ".ci", "CMakeLists.txt",
                           "README.md", "LICENSE", ".gitignore", ".clang-format"}) {
    for (const auto& file : files_under(part)) {
      std::smatch match;
      const auto text = read(source_dir() / file);
      EXPECT_FALSE(std::regex_search(text, match, path)) << file << ": " << match.str();
      ++seen;
    }
  }
  EXPECT_GT(seen, 50u);
}

}  // namespace
}  // namespace outerloop::testing
