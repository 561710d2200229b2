#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

// What the reader refuses and the writer must not produce.
namespace quern::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr std::string_view kAlignmentKey = "general.alignment";
inline constexpr uint64_t kDefaultAlignment = 32;

inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxStringBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxArrayBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxTensorNameBytes = 63;
inline constexpr uint32_t kMaxDimensions = 4;
/// Elements and bytes of a tensor, and offsets, stay within a signed 64-bit integer.
inline constexpr uint64_t kMaxTensorSize = std::numeric_limits<int64_t>::max();

/// The least a key-value pair takes: key length, one byte of key, type, one byte of value.
inline constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;
/// The least a tensor's entry takes: name length, one byte of name, dimensions, type, offset.
inline constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 4 + 8;

}  // namespace quern::gguf
