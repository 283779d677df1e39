#include "schedule.hpp"

#include <cmath>
#include <numbers>

double lr_at(int64_t step, const Options& options) {
  constexpr double floor = 0.02;
  const auto at = static_cast<double>(step), end = static_cast<double>(options.steps);
  const double warm_up = options.warm_up < 0 ? end / 4 : static_cast<double>(options.warm_up);
  if (at <= warm_up) return options.lr * at / warm_up;
  const double left = (end - at) / (end - warm_up);
  const double shape = options.decay == Decay::linear ? left : (1 - std::cos(std::numbers::pi * left)) / 2;
  return options.lr * (floor + (1 - floor) * shape);
}
