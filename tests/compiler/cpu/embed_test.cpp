#include <gtest/gtest.h>

#include <cmath>

#include "models/gguf/file.h"
#include "tests/compiler/cpu/gemm_case.h"
#include "tests/support/fixtures.h"

namespace quern::cpu {
namespace {

using spec::QuantType;

class EmbedOfType : public testing::TestWithParam<QuantType> {};

TEST_P(EmbedOfType, rows_have_the_reference_decoders_bits) {
  for (const Scales scales : {Scales::ordinary, Scales::extreme}) {
    for (const uint32_t width : sample_k(GetParam())) {
      const RandomWeights w = random_weights(GetParam(), 9, width, width, scales);
      TestKernel kernel(spec::EmbedSpec{.type = GetParam(), .width = width, .scale = 1});
      std::vector<int32_t> ids = {8, 0, 3, 3, 7};
      std::vector<float> y(ids.size() * width, NAN);
      std::vector<float> expected;
      for (const int32_t id : ids) {
        const auto row = w.values.begin() + id * static_cast<ptrdiff_t>(width);
        expected.insert(expected.end(), row, row + width);
      }
      kernel.run({.n_tokens = static_cast<uint32_t>(ids.size())},
                 {ids.data(), const_cast<std::byte*>(w.raw.data()), y.data()}, 2);
      ASSERT_EQ(bits_of(y), bits_of(expected)) << "width " << width;
    }
  }
}

class EmbedOfQuants : public EmbedOfType {};

TEST_P(EmbedOfQuants, fixture_blocks_have_the_reference_decoders_bits) {
  const gguf::File file =
      gguf::File::open(test::data_file("fixtures/quant_blocks.gguf"), gguf::TensorTypes::any);
  const QuantTraits& traits = quant_traits(model_type(GetParam()));
  const gguf::Tensor* raw = file.find(std::string(traits.name) + ".raw");
  ASSERT_NE(raw, nullptr);
  constexpr uint32_t rows = 64, width = 256;
  ASSERT_EQ(raw->data.size(), rows * row_bytes(traits.type, width));
  std::vector<float> expected(rows * width);
  decode_row(traits.type, raw->data.data(), expected.data(), expected.size());
  TestKernel kernel(spec::EmbedSpec{.type = GetParam(), .width = width, .scale = 1});
  std::vector<int32_t> ids(rows);
  for (uint32_t i = 0; i < rows; ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<float> y(rows * width, NAN);
  kernel.run({.n_tokens = rows}, {ids.data(), const_cast<std::byte*>(raw->data.data()), y.data()});
  EXPECT_EQ(bits_of(y), bits_of(expected));
}

TEST(Embed, rows_are_multiplied_by_the_models_scale) {
  const RandomWeights w = random_weights(QuantType::q6_k, 2, 256, 1);
  const float scale = std::sqrt(256.0f);
  TestKernel kernel(spec::EmbedSpec{.type = QuantType::q6_k, .width = 256, .scale = scale});
  std::vector<int32_t> ids = {1};
  std::vector<float> y(256);
  kernel.run({.n_tokens = 1}, {ids.data(), const_cast<std::byte*>(w.raw.data()), y.data()});
  for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(y[i], scale * w.values[256 + i]);
}

std::string name_of(const testing::TestParamInfo<QuantType>& test) {
  return std::string(quant_traits(model_type(test.param)).name);
}

/// The types that the fixture holds.
std::vector<QuantType> block_types() {
  std::vector<QuantType> types;
  for (const QuantType type : all_types()) {
    if (quant_traits(model_type(type)).block_values > 1) types.push_back(type);
  }
  return types;
}

INSTANTIATE_TEST_SUITE_P(AllTypes, EmbedOfType, testing::ValuesIn(all_types()), name_of);
INSTANTIATE_TEST_SUITE_P(BlockTypes, EmbedOfQuants, testing::ValuesIn(block_types()), name_of);

}  // namespace
}  // namespace quern::cpu
