#include <gtest/gtest.h>

#include "tests/compiler/cpu/gemm_case.h"

namespace quern::cpu {
namespace {

using spec::QuantType;

/// Decodes packed rows through a GEMM with the unit vectors of k as tokens: y[token][row] is then
/// the weight [row][token] (a zero's sign is lost in the sum).
std::vector<float> decode_packed(const RandomWeights& w, Aligned<std::byte>& packed,
                                 uint32_t gemv_max_tokens, uint32_t tokens) {
  spec::GemmSpec spec;
  spec.segments[0] = {w.type, w.rows};
  spec.k = w.k;
  spec.k_block = 128;
  spec.gemv_max_tokens = gemv_max_tokens;
  TestKernel kernel(spec);
  std::vector<float> x(static_cast<size_t>(tokens) * w.k);
  for (uint32_t t = 0; t < tokens; ++t) x[t * w.k + t] = 1;
  std::vector<float> y(static_cast<size_t>(tokens) * w.rows, NAN);
  kernel.run({.n_tokens = tokens}, {x.data(), y.data(), nullptr, packed.data(), nullptr});
  return y;
}

class RepackOfType : public testing::TestWithParam<QuantType> {};

TEST_P(RepackOfType, weights_of_every_scale_decode_to_the_reference_bits) {
  const uint32_t k = GetParam() == QuantType::f32 ? 19 : sample_k(GetParam()).back();
  const RandomWeights w = random_weights(GetParam(), 35, k, 77, Scales::extreme);
  Aligned<std::byte> packed = pack(w, 2);
  for (const uint32_t gemv_max_tokens : {0u, 1000u}) {
    const std::vector<float> y = decode_packed(w, packed, gemv_max_tokens, k);
    for (uint32_t r = 0; r < w.rows; ++r) {
      for (uint32_t t = 0; t < k; ++t) {
        const float expected = w.values[static_cast<size_t>(r) * k + t] + 0.0f;
        ASSERT_EQ(bits_of({y[static_cast<size_t>(t) * w.rows + r]}), bits_of({expected}))
            << "row " << r << " k " << t << " value " << expected;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, RepackOfType, testing::ValuesIn(all_types()),
                         [](const auto& test) {
                           return std::string(quant_traits(model_type(test.param)).name);
                         });

TEST(Repack, rows_are_picked_by_offset_block_and_stride) {
  const RandomWeights w = random_weights(QuantType::q8_0, 60, 64, 5);
  const size_t row = row_bytes(quern::QuantType::q8_0, 64);
  const uint32_t offset = 3, block = 4, stride = 10, rows = 18;
  RandomWeights picked{.type = w.type, .rows = rows, .k = 64, .raw = {}, .values = {}};
  for (uint32_t r = 0; r < rows; ++r) {
    const size_t from = offset + r / block * stride + r % block;
    picked.raw.insert(picked.raw.end(), w.raw.begin() + static_cast<ptrdiff_t>(from * row),
                      w.raw.begin() + static_cast<ptrdiff_t>((from + 1) * row));
  }
  const Aligned<std::byte> expected = pack(picked);
  Aligned<std::byte> packed(packed_bytes(w.type, rows, 64));
  repack_kernel(w.type, 64)
      .run({.n_tokens = rows, .params = {offset, block, stride}},
           {const_cast<std::byte*>(w.raw.data()), packed.data()});
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), expected.begin()));
}

TEST(Repack, cells_take_little_more_than_the_file) {
  for (const QuantType type : all_types()) {
    const double file = static_cast<double>(row_bytes(model_type(type), 1024)) * 160;
    const double packed = static_cast<double>(packed_bytes(type, 160, 1024));
    EXPECT_GE(packed, file);
    EXPECT_LE(packed, file * 1.04) << quant_traits(model_type(type)).name;
    EXPECT_EQ(packed_bytes(type, 1, 1024), packed_bytes(type, 16, 1024)) << "rows pad to 16";
    EXPECT_EQ(packed_bytes(type, 16, 1024) % 16, 0);
  }
}

}  // namespace
}  // namespace quern::cpu
