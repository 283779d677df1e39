#include "round/share.hpp"

namespace outerloop::round {

double add_terms(const Wires& wires, std::vector<Term> terms) {
  std::erase_if(terms, [](const Term& term) { return term.factor == 0; });
  if (terms.empty()) return 0;
  const Term first = terms.front();
  for (size_t i = 0; i < wires.size(); ++i) {
    if (first.wires != &wires) wires[i].copy_((*first.wires)[i]);
    for (size_t j = 1; j < terms.size(); ++j) {
      kernels::step(wires[i], {}, (*terms[j].wires)[i], {.lr = -terms[j].factor / first.factor});
    }
  }
  return first.factor;
}

}  // namespace outerloop::round
