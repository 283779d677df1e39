#pragma once

#include "round/fragment.hpp"

namespace outerloop::round {

/// What an eager replica applies of its own delta when it sends it, and takes back when the sum of all arrives:
/// scale * wires.
struct Share {
  Wires wires = {};  ///< as they were sent
  double scale = 0;
};

/// A factor of the wires.
struct Term {
  const Wires* wires;
  double factor;
};

/// wires <- sum of the terms / the factor that is returned; terms of factor 0 are left out, and if none is left it
/// returns 0. Of the terms the first may be `wires` itself.
double add_terms(const Wires& wires, std::vector<Term> terms);

}  // namespace outerloop::round
