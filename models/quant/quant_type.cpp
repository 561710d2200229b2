#include "models/quant/quant_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/quant/decode.h"

namespace quern {
namespace {

constexpr std::array kTable = std::to_array<QuantTraits>({
    {QuantType::f32, "f32", 1, 4, decode::f32},
    {QuantType::f16, "f16", 1, 2, decode::f16},
    {QuantType::q4_0, "q4_0", 32, 18, decode::q4_0},
    {QuantType::q4_1, "q4_1", 32, 20, decode::q4_1},
    {QuantType::q5_0, "q5_0", 32, 22, decode::q5_0},
    {QuantType::q5_1, "q5_1", 32, 24, decode::q5_1},
    {QuantType::q8_0, "q8_0", 32, 34, decode::q8_0},
    {QuantType::q2_k, "q2_k", 256, 84, decode::q2_k},
    {QuantType::q3_k, "q3_k", 256, 110, decode::q3_k},
    {QuantType::q4_k, "q4_k", 256, 144, decode::q4_k},
    {QuantType::q5_k, "q5_k", 256, 176, decode::q5_k},
    {QuantType::q6_k, "q6_k", 256, 210, decode::q6_k},
    {QuantType::iq4_nl, "iq4_nl", 32, 18, decode::iq4_nl},
    {QuantType::iq4_xs, "iq4_xs", 256, 136, decode::iq4_xs},
    {QuantType::bf16, "bf16", 1, 2, decode::bf16},
    {QuantType::mxfp4, "mxfp4", 32, 17, decode::mxfp4},
});

// Every type id that the format has had; an entry without a name was never published or was
// removed.
struct FormatType {
  std::string_view name;
  uint32_t block_values;
  uint32_t block_bytes;
};
constexpr std::array kFormat = std::to_array<FormatType>({
    {"f32", 1, 4},        {"f16", 1, 2},        {"q4_0", 32, 18},     {"q4_1", 32, 20},
    {"q4_2", 0, 0},       {"q4_3", 0, 0},       {"q5_0", 32, 22},     {"q5_1", 32, 24},
    {"q8_0", 32, 34},     {"q8_1", 32, 36},     {"q2_k", 256, 84},    {"q3_k", 256, 110},
    {"q4_k", 256, 144},   {"q5_k", 256, 176},   {"q6_k", 256, 210},   {"q8_k", 256, 292},
    {"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74},  {"iq3_xxs", 256, 98}, {"iq1_s", 256, 50},
    {"iq4_nl", 32, 18},   {"iq3_s", 256, 110},  {"iq2_s", 256, 82},   {"iq4_xs", 256, 136},
    {"i8", 1, 1},         {"i16", 1, 2},        {"i32", 1, 4},        {"i64", 1, 8},
    {"f64", 1, 8},        {"iq1_m", 256, 56},   {"bf16", 1, 2},       {"q4_0_4_4", 0, 0},
    {"q4_0_4_8", 0, 0},   {"q4_0_8_8", 0, 0},   {"tq1_0", 256, 54},   {"tq2_0", 256, 66},
    {"iq4_nl_4_4", 0, 0}, {"iq4_nl_4_8", 0, 0}, {"iq4_nl_8_8", 0, 0}, {"mxfp4", 32, 17},
    {"nvfp4", 64, 36},    {"q1_0", 128, 18},    {"q2_0", 64, 18},
});

const QuantTraits* find_row(uint32_t id) {
  const auto* row = std::find_if(kTable.begin(), kTable.end(), [id](const QuantTraits& traits) {
    return static_cast<uint32_t>(traits.type) == id;
  });
  return row == kTable.end() ? nullptr : row;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::span<const QuantTraits> quant_table() {
  return kTable;
}

const QuantTraits& quant_traits(QuantType type) {
  const QuantTraits* row = find_row(static_cast<uint32_t>(type));
  if (row == nullptr) {
    throw Error(ErrorKind::bad_model, gguf_type_name(static_cast<uint32_t>(type)),
                "is a tensor type that Quern does not decode");
  }
  return *row;
}

std::optional<QuantType> quant_type_from_id(uint32_t id) {
  const QuantTraits* row = find_row(id);
  if (row == nullptr) return std::nullopt;
  return row->type;
}

std::optional<QuantType> quant_type_from_name(std::string_view name) {
  for (const QuantTraits& traits : kTable) {
    if (equals_ignoring_case(traits.name, name)) return traits.type;
  }
  return std::nullopt;
}

std::string gguf_type_name(uint32_t id) {
  if (id < kFormat.size()) return std::string(kFormat[id].name);
  return fmt::format("type {}", id);
}

std::optional<BlockSize> gguf_block_size(uint32_t id) {
  if (id >= kFormat.size() || kFormat[id].block_values == 0) return std::nullopt;
  return BlockSize{kFormat[id].block_values, kFormat[id].block_bytes};
}

size_t row_bytes(QuantType type, size_t values) {
  const QuantTraits& traits = quant_traits(type);
  if (values % traits.block_values != 0) {
    throw Error(ErrorKind::failed, fmt::format("a row of {} values", values),
                fmt::format("is not a whole number of {} blocks ({} values each)", traits.name,
                            traits.block_values));
  }
  return values / traits.block_values * traits.block_bytes;
}

void decode_row(QuantType type, const std::byte* src, float* dst, size_t values) {
  const QuantTraits& traits = quant_traits(type);
  traits.decode(src, dst, row_bytes(type, values) / traits.block_bytes);
}

}  // namespace quern
