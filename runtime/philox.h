#pragma once

#include <array>
#include <cstdint>

namespace quern {

/// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):
/// four random words for a counter under a key, the same on every machine.
constexpr std::array<uint32_t, 4> philox_4x32_10(std::array<uint32_t, 4> counter,
                                                 std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // The golden ratio and sqrt(3) - 1, as fractions of 2^32.
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// A number in [0, 1) with 53 random bits, fixed by seed and position.
constexpr double philox_uniform(uint64_t seed, uint64_t position) {
  const auto words =
      philox_4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                     {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace quern
