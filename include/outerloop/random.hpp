#pragma once

#include <outerloop/formats.hpp>

/// Random numbers that are a function of a key and a place: the same on every device, in any order.

namespace outerloop::random {

struct Four {
  uint32_t word[4];
};

/// Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"), with 64 bits of the counter.
OUTERLOOP_HD Four philox(uint64_t counter, uint64_t key) {
  uint32_t a = static_cast<uint32_t>(counter), b = static_cast<uint32_t>(counter >> 32), c = 0, d = 0;
  uint32_t k = static_cast<uint32_t>(key), l = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xd2511f53u} * a, q = uint64_t{0xcd9e8d57u} * c;
    a = static_cast<uint32_t>(q >> 32) ^ b ^ k;
    b = static_cast<uint32_t>(q);
    c = static_cast<uint32_t>(p >> 32) ^ d ^ l;
    d = static_cast<uint32_t>(p);
    k += 0x9e3779b9u;
    l += 0xbb67ae85u;
  }
  return {{a, b, c, d}};
}

/// In [0, 1): a multiple of 2^-24.
OUTERLOOP_HD float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace outerloop::random
