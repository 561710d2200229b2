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

}  // namespace
}  // namespace quern::cpu
