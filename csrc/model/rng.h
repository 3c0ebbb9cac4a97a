// Counter-based random numbers: the n-th number of a seed needs no state (Philox 4x32-10, Salmon et al., SC 2011).
#pragma once

#include <cstdint>

namespace hasten {

// Uniform in [0, 1) with 53 bits, a function of (seed, position) alone.
inline double uniform(uint64_t seed, uint64_t position) {
  constexpr uint64_t kMul0 = 0xD2511F53;
  constexpr uint64_t kMul1 = 0xCD9E8D57;
  uint32_t c0 = static_cast<uint32_t>(position);
  uint32_t c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = 0;
  uint32_t c3 = 0;
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMul0 * c0;
    const uint64_t product1 = kMul1 * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{c1} << 32 | c0) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace hasten
