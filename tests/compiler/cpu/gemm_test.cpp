#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/compiler/cpu/gemm_case.h"

namespace quern::cpu {
namespace {

using spec::Epilogue;
using spec::QuantType;

const std::vector<uint32_t> kTokens = {1, 2, 3, 5, 7, 16, 17, 33, 64};

GemmCase make_case(uint32_t k, Epilogue epilogue = Epilogue::store) {
  GemmCase c;
  c.spec.k = k;
  c.spec.epilogue = epilogue;
  const GemmTile tile = choose_gemm_tile(resolve_target("native"), k, epilogue);
  c.spec.tile_tokens = tile.tile_tokens;
  c.spec.tile_cells = tile.tile_cells;
  c.spec.k_block = tile.k_block;
  c.spec.gemv_max_tokens = tile.gemv_max_tokens;
  return c;
}

class GemmOfType : public testing::TestWithParam<QuantType> {};

TEST_P(GemmOfType, bits_are_one_chain_over_k_for_any_token_count) {
  for (const uint32_t k : sample_k(GetParam())) {
    for (const uint32_t rows : {k % 3 == 0 ? 23u : 112u}) {
      GemmCase c = make_case(k);
      c.add(GetParam(), rows, 17 * k + rows);
      TestKernel kernel(c.spec);
      const std::vector<float> x = random_floats(64 * k, 5);
      const std::vector<float> expected = c.sums(0, x, 64);
      for (const uint32_t tokens : kTokens) {
        const std::vector<float> y = c.run(kernel, {x.begin(), x.begin() + tokens * k}, tokens);
        ASSERT_EQ(bits_of(y), bits_of({expected.begin(), expected.begin() + tokens * rows}))
            << "k " << k << " rows " << rows << " tokens " << tokens;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, GemmOfType, testing::ValuesIn(all_types()),
                         [](const auto& test) {
                           return std::string(quant_traits(model_type(test.param)).name);
                         });

/// The kernel's own vector functions, lane by lane, through a 1 x 1 identity would hide their
/// shape: the epilogues are checked against doubles within the bound that vec.h states.
float silu_reference(float x) {
  return static_cast<float>(static_cast<double>(x) / (1 + std::exp(-static_cast<double>(x))));
}
float gelu_reference(float x) {
  const double u = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * double{x} * x * x);
  return static_cast<float>(0.5 * x * (1 + std::tanh(u)));
}

TEST(Gemm, segments_of_mixed_types_with_bias_fill_one_row) {
  GemmCase c = make_case(256);
  c.add(QuantType::q4_k, 48, 1, true);
  c.add(QuantType::q6_k, 19, 2);
  c.add(QuantType::f16, 7, 3, true);
  c.add(QuantType::q8_0, 64, 4, true);
  TestKernel kernel(c.spec);
  for (const uint32_t tokens : {1u, 2u, 9u}) {
    const std::vector<float> x = random_floats(tokens * 256, 9);
    const std::vector<float> y = c.run(kernel, x, tokens);
    uint32_t column = 0;
    for (uint32_t s = 0; s < 4; ++s) {
      const std::vector<float> expected = c.sums(s, x, tokens);
      const uint32_t rows = c.weights[s].rows;
      for (uint32_t t = 0; t < tokens; ++t) {
        const auto row = y.begin() + t * c.out_rows() + column;
        ASSERT_EQ(bits_of({row, row + rows}),
                  bits_of({expected.begin() + t * rows, expected.begin() + (t + 1) * rows}))
            << "segment " << s << " token " << t << " of " << tokens;
      }
      column += rows;
    }
  }
}

TEST(Gemm, residual_is_added_to_the_finished_sum_also_in_place) {
  GemmCase c = make_case(96, Epilogue::residual);
  c.add(QuantType::q5_1, 41, 6, true);
  TestKernel kernel(c.spec);
  for (const uint32_t tokens : {1u, 20u}) {
    std::vector<float> x = random_floats(tokens * 96, 1);
    const std::vector<float> residual = random_floats(tokens * 41, 2);
    std::vector<float> expected = c.sums(0, x, tokens);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = residual[i] + expected[i];
    EXPECT_EQ(bits_of(c.run(kernel, x, tokens, residual)), bits_of(expected));
    std::vector<float> y = residual;
    kernel.run({.n_tokens = tokens},
               {x.data(), y.data(), y.data(), c.packed[0].data(), c.biases[0].data()});
    EXPECT_EQ(bits_of(y), bits_of(expected)) << "in place";
  }
}

TEST(Gemm, gated_products_use_silu_or_gelu_of_the_gate) {
  for (const Epilogue epilogue : {Epilogue::swiglu, Epilogue::gelu_glu}) {
    GemmCase c = make_case(256, epilogue);
    c.add(QuantType::q4_k, 55, 6, true);
    c.add(QuantType::q5_k, 55, 8, true);
    TestKernel kernel(c.spec);
    std::vector<float> first;
    for (const uint32_t tokens : {1u, 2u, 23u}) {
      const std::vector<float> x = random_floats(tokens * 256, 1);
      const std::vector<float> gate = c.sums(0, x, tokens);
      const std::vector<float> up = c.sums(1, x, tokens);
      const std::vector<float> y = c.run(kernel, x, tokens);
      for (size_t i = 0; i < y.size(); ++i) {
        const float act =
            epilogue == Epilogue::swiglu ? silu_reference(gate[i]) : gelu_reference(gate[i]);
        ASSERT_NEAR(y[i], act * up[i], 1e-6 * std::abs(act * up[i]) + 1e-9) << "value " << i;
      }
      if (first.empty()) first.assign(y.begin(), y.begin() + 55);
      EXPECT_EQ(bits_of({y.begin(), y.begin() + 55}), bits_of(first)) << tokens << " tokens";
    }
  }
}

TEST(Gemm, softcap_bounds_the_logits) {
  GemmCase c = make_case(64);
  c.spec.softcap = 3;
  c.add(QuantType::f32, 33, 6);
  TestKernel kernel(c.spec);
  const std::vector<float> x = random_floats(5 * 64, 1);
  const std::vector<float> sums = c.sums(0, x, 5);
  const std::vector<float> y = c.run(kernel, x, 5);
  for (size_t i = 0; i < y.size(); ++i) {
    const float expected = static_cast<float>(3 * std::tanh(double{sums[i]} / 3));
    EXPECT_NEAR(y[i], expected, 5e-7 * std::abs(expected));
  }
}

TEST(Gemm, bits_do_not_depend_on_workers) {
  GemmCase c = make_case(512, Epilogue::swiglu);
  c.add(QuantType::q4_k, 200, 1);
  c.add(QuantType::q6_k, 200, 2);
  TestKernel kernel(c.spec);
  for (const uint32_t tokens : {1u, 70u}) {
    const std::vector<float> x = random_floats(tokens * 512, 1);
    const std::vector<float> one = c.run(kernel, x, tokens);
    EXPECT_EQ(bits_of(c.run(kernel, x, tokens, {}, 3)), bits_of(one)) << tokens << " tokens";
  }
}

TEST(Gemm, bits_do_not_depend_on_tiles_or_vector_width) {
  const Target native = resolve_target("native");
  const Target v3 = resolve_target("x86-64-v3");
  const std::vector<float> x = random_floats(21 * 256, 1);
  for (const Epilogue epilogue : {Epilogue::store, Epilogue::swiglu}) {
    GemmCase c = make_case(256, epilogue);
    c.add(QuantType::q3_k, 90, 1);
    c.add(QuantType::q2_k, 90, 2);
    TestKernel wide(c.spec, native);
    const std::vector<uint32_t> expected = bits_of(c.run(wide, x, 21));
    const GemmTile narrow_tile = choose_gemm_tile(v3, 256, epilogue);
    struct {
      uint32_t tokens, cells, k_block, gemv;
    } const tiles[] = {{8, 2, 32, 1}, {4, 4, 256, 30}, {12, 2, 96, 2}};
    for (const auto& tile : tiles) {
      c.spec.tile_tokens = tile.tokens;
      c.spec.tile_cells = tile.cells;
      c.spec.k_block = tile.k_block;
      c.spec.gemv_max_tokens = tile.gemv;
      TestKernel other(c.spec, native);
      EXPECT_EQ(bits_of(c.run(other, x, 21)), expected) << "tile of " << tile.tokens << " tokens";
    }
    c.spec.tile_tokens = narrow_tile.tile_tokens;
    c.spec.tile_cells = narrow_tile.tile_cells;
    c.spec.k_block = narrow_tile.k_block;
    c.spec.gemv_max_tokens = narrow_tile.gemv_max_tokens;
    TestKernel narrow(c.spec, v3);
    EXPECT_EQ(bits_of(c.run(narrow, x, 21)), expected) << "x86-64-v3";
    for (const uint32_t tokens : {1u, 2u}) {
      EXPECT_EQ(bits_of(c.run(narrow, x, tokens)), bits_of(c.run(wide, x, tokens))) << "x86-64-v3";
    }
  }
}

TEST(Gemm, each_weight_is_decoded_once_a_chunk) {
  GemmCase c = make_case(320);
  c.add(QuantType::q8_0, 144, 1);
  TestKernel kernel(c.spec);
  for (const uint32_t tokens : {1u, 3u, 200u}) {
    std::vector<float> x = random_floats(tokens * 320, 1);
    std::vector<float> y(tokens * 144);
    uint64_t decoded = 0;
    kernel.run({.n_tokens = tokens, .params = {1}},
               {x.data(), y.data(), nullptr, c.packed[0].data(), nullptr, &decoded}, 2);
    EXPECT_EQ(decoded, 144 * 320) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace quern::cpu
