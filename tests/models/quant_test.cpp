#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/quant/quant_type.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

/// The value of a half by its definition, in double.
double half_by_definition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_half_nan(uint16_t bits) {
  return (bits & 0x7fff) > 0x7c00;
}
bool is_half_infinite(uint16_t bits) {
  return (bits & 0x7fff) == 0x7c00;
}

TEST(half, every_half_decodes_to_its_value) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float value = f16_to_f32(half);
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << i;
    if (is_half_nan(half)) {
      ASSERT_TRUE(std::isnan(value)) << i;
    } else if (is_half_infinite(half)) {
      ASSERT_TRUE(std::isinf(value)) << i;
    } else {
      ASSERT_EQ(static_cast<double>(value), half_by_definition(half)) << i;
    }
  }
}

TEST(half, every_half_survives_the_round_trip) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const uint16_t expected = is_half_nan(half) ? half | 0x200 : half;
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), expected) << i;
  }
}

TEST(half, encoding_rounds_to_nearest_and_ties_to_even) {
  // Between every two neighbours: the midpoint goes to the even one, the floats beside it to the
  // nearer one.
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t i = 0; i < 0x7c00; ++i) {
      const auto low = static_cast<uint16_t>(sign | i);
      const auto high = static_cast<uint16_t>(sign | (i + 1));
      const double above = i + 1 == 0x7c00 ? std::copysign(65536.0, half_by_definition(low))
                                           : half_by_definition(high);
      const auto middle = static_cast<float>((half_by_definition(low) + above) / 2);
      const float outward = std::copysign(std::numeric_limits<float>::infinity(), middle);
      ASSERT_EQ(f32_to_f16(middle), i % 2 == 0 ? low : high) << i;
      ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low) << i;
      ASSERT_EQ(f32_to_f16(std::nextafter(middle, outward)), high) << i;
    }
  }
}

TEST(half, encoding_handles_the_extremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(kInfinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(-kInfinity), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::denorm_min()), 0x8000);
  EXPECT_TRUE(is_half_nan(f32_to_f16(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(is_half_nan(f32_to_f16(std::bit_cast<float>(0xffffffffu))));
}

TEST(bfloat16, every_value_is_the_upper_half_of_its_float_and_survives_the_round_trip) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bf = static_cast<uint16_t>(i);
    ASSERT_EQ(bits_of(bf16_to_f32(bf)), i << 16);
    const uint16_t expected = (bf & 0x7fff) > 0x7f80 ? bf | 0x40 : bf;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(bf)), expected);
  }
}

TEST(bfloat16, encoding_rounds_to_nearest_and_ties_to_even) {
  for (uint32_t i = 0; i < 0x7f80; ++i) {
    const uint32_t middle = (i << 16) | 0x8000;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), i % 2 == 0 ? i : i + 1);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), i);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), i + 1);
  }
  // The largest NaN payload must not round over into a number.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7fffffffu)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

// quant_blocks.gguf: 64 rows of 256 values of each type, and the same decoded by gguf-py.
class quant_blocks : public testing::TestWithParam<QuantType> {};

TEST_P(quant_blocks, decode_to_the_reference_bits) {
  const auto file =
      gguf::File::open(test::data_file("fixtures/quant_blocks.gguf"), gguf::TensorTypes::any);
  const std::string name(quant_traits(GetParam()).name);
  const gguf::Tensor* raw = file.find(name + ".raw");
  const gguf::Tensor* expected = file.find(name + ".f32");
  ASSERT_NE(raw, nullptr);
  ASSERT_NE(expected, nullptr);
  ASSERT_EQ(raw->type, GetParam());
  ASSERT_EQ(expected->type, QuantType::f32);
  ASSERT_EQ(raw->row_length(), 256u);
  ASSERT_EQ(raw->rows(), 64u);
  const size_t bytes = row_bytes(GetParam(), 256);
  std::vector<float> row(256);
  for (size_t r = 0; r < raw->rows(); ++r) {
    decode_row(GetParam(), raw->data.data() + r * bytes, row.data(), row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      float reference = 0;
      std::memcpy(&reference, expected->data.data() + 4 * (256 * r + i), 4);
      ASSERT_EQ(bits_of(row[i]), bits_of(reference))
          << name << " row " << r << " value " << i << ": " << row[i] << " not " << reference;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(types, quant_blocks,
                         testing::Values(QuantType::q4_0, QuantType::q4_1, QuantType::q5_0,
                                         QuantType::q5_1, QuantType::q8_0, QuantType::q2_k,
                                         QuantType::q3_k, QuantType::q4_k, QuantType::q5_k,
                                         QuantType::q6_k, QuantType::iq4_nl, QuantType::iq4_xs,
                                         QuantType::mxfp4),
                         [](const testing::TestParamInfo<QuantType>& row) {
                           return std::string(quant_traits(row.param).name);
                         });

TEST(quant_table, each_row_agrees_with_the_format_and_is_found_by_id_and_by_name) {
  std::set<std::string_view> names;
  for (const QuantTraits& row : quant_table()) {
    const auto id = static_cast<uint32_t>(row.type);
    const auto block = gguf_block_size(id);
    ASSERT_TRUE(block) << row.name;
    EXPECT_EQ(block->values, row.block_values) << row.name;
    EXPECT_EQ(block->bytes, row.block_bytes) << row.name;
    EXPECT_EQ(gguf_type_name(id), row.name);
    EXPECT_EQ(quant_type_from_id(id), row.type);
    EXPECT_EQ(quant_type_from_name(row.name), row.type);
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_EQ(row_bytes(row.type, 512), 512 / row.block_values * row.block_bytes);
  }
  EXPECT_EQ(names.size(), 16u);
}

TEST(quant_table, names_ignore_case_and_unknown_ones_are_nothing) {
  EXPECT_EQ(quant_type_from_name("Q4_K"), QuantType::q4_k);
  EXPECT_EQ(quant_type_from_name("BF16"), QuantType::bf16);
  for (const char* name : {"", "q4", "q4_k_m", "iq2_xxs", "q4_k "}) {
    EXPECT_EQ(quant_type_from_name(name), std::nullopt) << name;
  }
}

TEST(quant_table, types_that_quern_does_not_decode_still_have_a_name) {
  for (const uint32_t id : {4u, 9u, 15u, 16u, 26u, 29u, 34u, 40u, 42u, 43u, 0xffffffffu}) {
    EXPECT_EQ(quant_type_from_id(id), std::nullopt) << id;
  }
  EXPECT_EQ(gguf_type_name(16), "iq2_xxs");
  EXPECT_EQ(gguf_type_name(40), "nvfp4");
  EXPECT_EQ(gguf_type_name(77), "type 77");
  EXPECT_EQ(gguf_block_size(77), std::nullopt);
  EXPECT_EQ(gguf_block_size(4), std::nullopt);  // q4_2 was removed from the format.
  EXPECT_THROW(quant_traits(static_cast<QuantType>(16)), Error);
}

TEST(quant_table, a_row_that_is_not_whole_blocks_is_refused) {
  EXPECT_THROW(row_bytes(QuantType::q4_k, 128), Error);
  EXPECT_THROW(row_bytes(QuantType::q8_0, 33), Error);
  EXPECT_EQ(row_bytes(QuantType::q8_0, 0), 0u);
  EXPECT_EQ(row_bytes(QuantType::f16, 3), 6u);
}

TEST(quant_decode, unquantised_types_keep_their_values) {
  const float values[] = {0.0f, -0.0f, 1.5f, -2.0f, 0x1p-24f, 65504.0f};
  for (const QuantType type : {QuantType::f32, QuantType::f16, QuantType::bf16}) {
    for (const float value : values) {
      std::byte bytes[4];
      if (type == QuantType::f32) {
        std::memcpy(bytes, &value, 4);
      } else {
        const uint16_t half = type == QuantType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        std::memcpy(bytes, &half, 2);
      }
      float decoded = 0;
      decode_row(type, bytes, &decoded, 1);
      const float expected = type == QuantType::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value;
      EXPECT_EQ(bits_of(decoded), bits_of(expected));
    }
  }
}

TEST(quant_decode, affine_blocks_round_once_like_a_fused_multiply_add) {
  // Adversarial scales: subnormal d, zero and negative dmin, all-ones quants and sub-scales.
  const float scales[] = {0x1p-24f, 0x1.ff8p-15f, 1.0f, -0x1.554p3f, 65504.0f, 0.0f};
  for (const float d : scales) {
    for (const float dmin : scales) {
      std::vector<std::byte> block(144, std::byte{0xff});
      const uint16_t d_bits = f32_to_f16(d);
      const uint16_t dmin_bits = f32_to_f16(dmin);
      std::memcpy(block.data(), &d_bits, 2);
      std::memcpy(block.data() + 2, &dmin_bits, 2);
      std::vector<float> values(256);
      decode_row(QuantType::q4_k, block.data(), values.data(), 256);
      const float expected = std::fma(d * 63.0f, 15.0f, -(dmin * 63.0f));
      for (const float value : values) ASSERT_EQ(bits_of(value), bits_of(expected)) << d << dmin;
    }
  }
}

TEST(quant_decode, mxfp4_scales_reach_both_ends_of_their_range) {
  for (const uint32_t e : {0u, 1u, 2u, 3u, 127u, 128u, 252u}) {
    std::vector<std::byte> block(17, std::byte{0x97});  // Codes 7 (12) and 9 (-1).
    block[0] = static_cast<std::byte>(e);
    std::vector<float> values(32);
    decode_row(QuantType::mxfp4, block.data(), values.data(), 32);
    const double scale = std::ldexp(1.0, static_cast<int>(e) - 128);
    EXPECT_EQ(static_cast<double>(values[0]), 12 * scale) << e;
    EXPECT_EQ(static_cast<double>(values[16]), -scale) << e;
  }
}

}  // namespace
}  // namespace quern
