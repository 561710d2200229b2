#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quern {

/// Tensor element types, with GGUF's own ids. Only types that Quern decodes are listed.
enum class QuantType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
};

/// One row of the quant-type table.
struct QuantTraits {
  QuantType type;
  std::string_view name;  ///< As users write it: "q4_k".
  uint32_t block_values;  ///< Values a block.
  uint32_t block_bytes;   ///< Bytes a block.
  /// Decodes `blocks` consecutive blocks to f32, by the formulas of docs (FACTS section A).
  void (*decode)(const std::byte* src, float* dst, size_t blocks);
};

/// Every row of the table, by ascending id.
std::span<const QuantTraits> quant_table();
/// The table's row of a type. Throws Error (`bad_model`) for an id that Quern does not decode.
const QuantTraits& quant_traits(QuantType type);
/// The type with this GGUF id, or nothing where Quern does not decode it.
std::optional<QuantType> quant_type_from_id(uint32_t id);
/// The type with this name ("q4_k", case-insensitive), or nothing.
std::optional<QuantType> quant_type_from_name(std::string_view name);
/// GGUF's name of any type id that the format has had, supported or not ("iq2_xxs"), or "type 77".
std::string gguf_type_name(uint32_t id);

/// How a type packs values, for every type that the format has, decoded by Quern or not.
struct BlockSize {
  uint32_t values;
  uint32_t bytes;
};
/// The block size of this GGUF id, or nothing where the format has no such type (any more).
std::optional<BlockSize> gguf_block_size(uint32_t id);

/// Bytes of a row of `values` values. Throws Error (`failed`) where they are not whole blocks.
size_t row_bytes(QuantType type, size_t values);
/// Decodes one row of `values` values to f32.
void decode_row(QuantType type, const std::byte* src, float* dst, size_t values);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  ///< Round to nearest even.
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);  ///< Round to nearest even.

}  // namespace quern
