#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quern {

/// Zeroed anonymous memory, aligned to a page (large pieces to 2 MiB, with huge pages asked for).
/// Pages come into being when they are touched.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  /// Throws Error (`does_not_fit`) naming `what` where the address space cannot be had.
  ZeroedMemory(uint64_t bytes, std::string_view what);
  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;
  ~ZeroedMemory();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  /// Makes every byte zero again and gives the pages back.
  void clear();

 private:
  void* mapping_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Bytes that this process may still use: what the system has available, and what its control group
/// leaves.
uint64_t available_memory();

/// Throws Error (`does_not_fit`) naming `what` where less than `bytes` are available.
void require_memory(uint64_t bytes, std::string_view what);

/// "1.25 GiB", "310 MiB", "12 KiB".
std::string readable_bytes(uint64_t bytes);

}  // namespace quern
