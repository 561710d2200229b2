#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/compiler/cpu/launch.h"

namespace quern::cpu {
namespace {

TEST(Jit, embed_of_f32_rows_runs) {
  TestKernel kernel(spec::EmbedSpec{.type = spec::QuantType::f32, .width = 5, .scale = 2});
  std::vector<int32_t> ids = {1, 0};
  std::vector<float> table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<float> y(10);
  kernel.run({.n_tokens = 2}, {ids.data(), table.data(), y.data()});
  EXPECT_EQ(y, (std::vector<float>{10, 12, 14, 16, 18, 0, 2, 4, 6, 8}));
}

}  // namespace
}  // namespace quern::cpu
