#include <c10/util/Exception.h>

#include <cmath>
#include <complex>

#include <outerloop/stability.hpp>

// With a small lr all z are inside the unit circle: one at 1 - lr / (1 - momentum), the others near momentum and 0. So
// the limit is the smallest lr that puts one on it, at e^{iw} with 0 < w <= pi: the smallest positive value, among all
// w where it is real, of
//   lr(w) = path(w) / late(w),   path = -(z - 1)(1 - momentum/z) / (1 + momentum - momentum/z),   late = W.
//
// 1. Of these w the first counts. With r = replicas - 1 (if not eager, r -> infinity), |late - own| = r * own says that
//      (1 + r) / lr = Re(1/path) + sqrt(Re(1/path)^2 + (r^2 - 1) / |path|^2),
//    and Re(1/path) >= 0 falls from w = 0 to pi, as 1/|path| does: by partial fractions Re(1/path) is 1/2 plus
//    momentum^2 (momentum for heavy ball) times Re(1 / (z - momentum)), all over 1 - momentum.
// 2. There is exactly one before late has turned by pi / 2. It is where -arg(path) = -arg(late), of which the first
//    starts at pi / 2 and the second at 0. -arg(path) / w falls: -arg(path) is the phase of 1 + momentum - momentum/z,
//    which is concave and 0 at w = 0, plus pi / 2 - w / 2 - arg(1 - momentum/z), which falls and is >= 0. And
//    -arg(late) / w does not fall, as -arg(late) is convex and 0 at w = 0. So they meet once.

namespace outerloop {
namespace {

using Complex = std::complex<double>;

void check(const OuterDynamics& dynamics) {
  TORCH_CHECK(dynamics.momentum >= 0 && dynamics.momentum < 1, "outer_momentum must be in [0, 1), got ",
              dynamics.momentum);
  TORCH_CHECK(dynamics.rounds_late >= 0, "rounds_late must be >= 0, got ", dynamics.rounds_late);
  TORCH_CHECK(dynamics.replicas >= 1, "replicas must be >= 1, got ", dynamics.replicas);
  TORCH_CHECK(!dynamics.eager || dynamics.rounds_late >= 1, "eager needs rounds_late >= 1, got ", dynamics.rounds_late);
}

Complex path(double w, const OuterDynamics& dynamics) {
  const Complex change = Complex(0, 2 * std::sin(w / 2)) * std::polar(1.0, -w / 2);  // 1 - 1/z, near w = 0 too
  const Complex held = 1 - dynamics.momentum + dynamics.momentum * change;           // 1 - momentum/z
  return std::conj(change) * held / (dynamics.nesterov ? 1.0 + dynamics.momentum * change : 1.0);
}

Complex late(double w, double own, int64_t rounds) {
  return own + (1 - own) * std::polar(1.0, -w * static_cast<double>(rounds));
}

/// The w at which arg(path) = arg(late), to the last bit.
double first_crossing(const OuterDynamics& dynamics, double own) {
  double low = 0,
         high = std::acos(-own / (1 - own)) / static_cast<double>(dynamics.rounds_late);  // late has turned by pi / 2
  for (double w = high / 2; low < w && w < high; w = low + (high - low) / 2) {
    const bool before = (path(w, dynamics) * std::conj(late(w, own, dynamics.rounds_late))).imag() < 0;
    (before ? low : high) = w;
  }
  return low;
}

}  // namespace

double largest_stable_lr(const OuterDynamics& dynamics) {
  check(dynamics);
  const double own = dynamics.eager ? 1 / static_cast<double>(dynamics.replicas) : 0.0;
  if (dynamics.rounds_late == 0 || own == 1) {  // late is 1, and path is real at w = pi only
    return 2 * (1 + dynamics.momentum) / (dynamics.nesterov ? 1 + 2 * dynamics.momentum : 1);
  }
  const double w = first_crossing(dynamics, own);
  return std::abs(path(w, dynamics)) / std::abs(late(w, own, dynamics.rounds_late));
}

}  // namespace outerloop
