#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace quern {

/// SHA-256 (FIPS 180-4), fed piece by piece.
class Sha256 {
 public:
  void update(std::span<const std::byte> data);
  /// The digest of everything fed so far, as 64 lower-case hex digits. Feeding may go on after it.
  std::string hex() const;

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_ = {};
  size_t filled_ = 0;
  uint64_t total_bytes_ = 0;
};

/// The digest of `data` as 64 lower-case hex digits.
std::string sha256_hex(std::span<const std::byte> data);

}  // namespace quern
