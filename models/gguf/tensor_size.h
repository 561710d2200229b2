#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "models/gguf/limits.h"
#include "models/quant/quant_type.h"

// One rule for what the reader accepts and the writer writes.
namespace quern::gguf {

/// The number of elements, or nothing where the product of the extents passes 63 bits. Empty
/// dimensions count as one in that check, so that no product of some of the extents can overflow.
constexpr std::optional<uint64_t> tensor_elements(std::span<const uint64_t> shape) {
  uint64_t elements = 1;
  uint64_t bound = 1;
  for (const uint64_t extent : shape) {
    elements *= extent;
    if (__builtin_mul_overflow(bound, extent == 0 ? 1 : extent, &bound) || bound > kMaxTensorSize) {
      return std::nullopt;
    }
  }
  return elements;
}

/// The bytes of this many elements in whole blocks, or nothing where they pass 63 bits.
constexpr std::optional<uint64_t> tensor_bytes(uint64_t elements, BlockSize block) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block.values, uint64_t{block.bytes}, &bytes) ||
      bytes > kMaxTensorSize) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace quern::gguf
