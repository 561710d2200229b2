#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace quern::gguf {

/// A whole file mapped read-only. The bytes stay where they are for the life of the object, also
/// when it is moved.
class Mapping {
 public:
  /// Throws Error (`failed`) where the path is not a regular file that can be read.
  explicit Mapping(const std::filesystem::path& path);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace quern::gguf
