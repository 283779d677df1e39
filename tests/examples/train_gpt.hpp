#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "program.hpp"

namespace outerloop::testing {

/// The example on a small text of its own, with a log to look into.
class TrainGpt {
 public:
  TrainGpt() { write(folder_ / "text", words(80'000)); }

  std::vector<std::string> command(const std::vector<std::string>& options) const {
    std::vector<std::string> all{OUTERLOOP_TRAIN_GPT, "--data", folder_ / "text", "--log", log(), "--batch", "2",
                                 "--sample",          "0",      "--eval-windows", "64"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  }
  Ended run(const std::vector<std::string>& options) const {
    Ended ended = Program(command(options)).wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended;
  }

  std::string log() const { return folder_ / "log.jsonl"; }
  /// The lines of one kind.
  std::vector<nlohmann::json> lines(const std::string& kind) const {
    std::vector<nlohmann::json> found;
    std::istringstream text(contents(log()));
    for (std::string line; std::getline(text, line);) {
      if (auto json = nlohmann::json::parse(line); json.at("kind") == kind) found.push_back(std::move(json));
    }
    return found;
  }
  nlohmann::json result() const {
    const auto all = lines("result");
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? nlohmann::json() : all.front();
  }

 private:
  TempFolder folder_;
};

}  // namespace outerloop::testing
