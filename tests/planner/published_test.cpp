#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <outerloop/planner.hpp>
#include <string>
#include <vector>

namespace outerloop::planner {
namespace {

/// Streaming DiLoCo (Douillard et al., 2025, arXiv:2501.18512), table 4: the Gbit/s needed for a utilisation of 50, 80,
/// 90, 95 and 99 %, of 50 numbers from 0.1 to 1000 in equal ratios. A round every 100 steps, fragments of three layers;
/// all parameters at 16 bits. With two replicas a ring all-reduce sends each parameter once, as the paper counts.
constexpr std::array targets{0.5, 0.8, 0.9, 0.95, 0.99};
using Cells = std::array<double, targets.size()>;
struct Model {
  const char* name;
  Job job;
  Cells data_parallel, diloco, streaming, overlap, four_bits;
};
const std::vector<Model> table{
    {"1B",
     {.parameters = 1'000'000'000, .step_seconds = 0.1, .layers = 24},
     {86.8, 152.6, 184.2, 222.3, 569},
     {1.4, 6.2, 13.3, 23.3, 86.8},
     {1.4, 5.2, 9.1, 16.0, 28.1},
     {1.4, 4.3, 6.2, 9.1, 11.0},
     {0.4, 0.9, 1.7, 2.0, 3.0}},
    {"10B",
     {.parameters = 10'000'000'000, .step_seconds = 0.8, .layers = 48},
     {104.8, 222.3, 222.3, 268.3, 471.5},
     {1.7, 7.5, 16.0, 33.9, 104.8},
     {1.7, 5.2, 9.1, 13.3, 19.3},
     {1.7, 3.6, 5.2, 6.2, 7.5},
     {0.4, 0.9, 1.4, 1.4, 1.7}},
    {"100B",
     {.parameters = 100'000'000'000, .step_seconds = 4.9, .layers = 108},
     {184.2, 323.8, 390.7, 390.7, 471.5},
     {3.0, 11.0, 23.3, 49.4, 184.2},
     {2.4, 6.2, 9.1, 11.0, 19.3},
     {1.7, 3.6, 4.3, 5.2, 5.2},
     {0.5, 0.9, 1.1, 1.1, 1.4}},
};

constexpr int points = 50;
double gbit_at(int point) { return std::pow(10, -1 + 4.0 * point / (points - 1)); }
int nearest_point(double gbit) { return static_cast<int>(std::lround((std::log10(gbit) + 1) * (points - 1) / 4)); }
int first_point(const Job& job, const Schedule& schedule, double target) {
  int point = 0;
  while (point < points && utilisation(job, {.bits_per_second = 1e9 * gbit_at(point)}, schedule) < target) ++point;
  return point;
}

struct Matches {
  int cells = 0, within_one_point = 0;
  std::string others;
};

void compare(Matches& matches, const Model& model, const char* column, const Schedule& schedule, const Cells& cells) {
  for (size_t i = 0; i < cells.size(); ++i) {
    const int found = first_point(model.job, schedule, targets[i]);
    const bool matches_one = std::abs(found - nearest_point(cells[i])) <= 1;
    ++matches.cells;
    matches.within_one_point += matches_one;
    if (!matches_one) {
      matches.others += std::string(model.name) + ", " + column + ", " + std::to_string(targets[i]) + ": published " +
                        std::to_string(cells[i]) + ", found " + std::to_string(gbit_at(found)) + "\n";
    }
  }
}

TEST(Published, SeventyFourOfTheSeventyFiveCellsAreWithinOnePointOfTheGrid) {
  Matches matches;
  for (const Model& model : table) {
    const auto schedule = [&](int fragments, int64_t delay, double bits) {
      return Schedule{100, fragments, delay, bits, Sending::during_backward};
    };
    const int threes = model.job.layers / 3;
    compare(matches, model, "data parallel", data_parallel(16), model.data_parallel);
    compare(matches, model, "DiLoCo", schedule(1, 0, 16), model.diloco);
    compare(matches, model, "streaming", schedule(threes, 0, 16), model.streaming);
    compare(matches, model, "overlap", schedule(threes, 1, 16), model.overlap);
    compare(matches, model, "overlap, 4 bits", schedule(threes, 1, 4), model.four_bits);
  }
  EXPECT_EQ(matches.cells, 75);
  EXPECT_GE(matches.within_one_point, 74) << matches.others;
}

TEST(Published, TheGridHoldsTheNumbersOfTheTable) {
  EXPECT_DOUBLE_EQ(gbit_at(0), 0.1);
  EXPECT_DOUBLE_EQ(gbit_at(points - 1), 1000);
  EXPECT_EQ(nearest_point(0.1), 0);
  EXPECT_NEAR(gbit_at(nearest_point(471.5)), 471.5, 0.05);
}

/// forgather's arithmetic for DiLoCo: 16 bits, a round every 500 steps of one second, 1 Gbit/s.
TEST(Published, ForgathersUtilisations) {
  const auto percent = [](int64_t parameters) {
    return 100 * utilisation({.parameters = parameters, .step_seconds = 1}, {.bits_per_second = 1e9},
                             {.sync_every = 500, .bits = 16});
  };
  EXPECT_NEAR(percent(150'000'000), 99.5, 0.05);
  EXPECT_NEAR(percent(1'000'000'000), 97, 0.5);
  EXPECT_NEAR(percent(7'000'000'000), 82, 0.5);
}

}  // namespace
}  // namespace outerloop::planner
