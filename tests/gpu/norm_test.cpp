// RMSNorm of the mma tier against double precision: f16 operands with their padding, and f32 with a
// residual.

#include <cmath>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {
namespace {

std::vector<float> normal(size_t count, uint32_t seed, float spread) {
  RandomNormal random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random() * spread;
  return values;
}

spec::NormSpec norm_spec(uint32_t width, bool residual) {
  return {.width = width,
          .group = width,
          .eps = 1e-5f,
          .residual = residual ? 1u : 0u,
          .tier = spec::Tier::mma};
}

struct NormRows {
  std::vector<float> x, weight, residual;
  std::vector<double> exact;  ///< Of the norm alone.
};

NormRows make_rows(uint32_t width, uint32_t tokens) {
  const size_t count = static_cast<size_t>(tokens) * width;
  NormRows rows{
      normal(count, width, 3), normal(width, width + 1, 1), normal(count, width + 2, 5), {}};
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* x = rows.x.data() + static_cast<size_t>(t) * width;
    double squares = 0;
    for (uint32_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
    for (uint32_t i = 0; i < width; ++i) {
      rows.exact.push_back(x[i] / std::sqrt(squares / width + static_cast<double>(1e-5f)) *
                           rows.weight[i]);
    }
  }
  return rows;
}

constexpr uint32_t tokens = 5;

class NormWidth : public testing::TestWithParam<uint32_t> {};

TEST_P(NormWidth, operand_is_the_rounded_exact_norm_and_padded_with_zeros) {
  QUERN_NEED_GPU();
  const uint32_t width = GetParam(), padded = (width + 63) / 64 * 64, operand_rows = 8;
  const NormRows rows = make_rows(width, tokens);
  Array<float> x(rows.x), weight(rows.weight);
  Array<uint16_t> y(static_cast<size_t>(padded) * operand_rows);
  Array<uint32_t> saturated(std::vector<uint32_t>{0});
  y.poison();
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = x.pointer();
  args.buffers[1] = weight.pointer();
  args.buffers[2] = y.pointer();
  args.operand_rows = operand_rows;
  args.x_scale = 0.5f;
  args.saturated = saturated.pointer();
  Kernel kernel(norm_spec(width, false), {.threads = 256});
  kernel.run(args, {.n_tokens = tokens, .start_position = 0, .n_outputs = 0, .reserved = 0},
             tokens + 2, 1);
  const std::vector<uint16_t> halves = y.download();
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < width; ++i) {
      const double exact = rows.exact[static_cast<size_t>(t) * width + i] * 0.5;
      ASSERT_NEAR(f16_to_f32(halves[operand_index(i, t, operand_rows)]), exact,
                  std::abs(exact) * (0x1p-11 + 1e-6) + 0x1p-25)
          << t << ", " << i;
    }
    for (uint32_t i = width; i < padded; ++i)
      ASSERT_EQ(halves[operand_index(i, t, operand_rows)], 0);
  }
  EXPECT_EQ(saturated.download()[0], 0u);
}

TEST_P(NormWidth, residual_is_added_in_f32) {
  QUERN_NEED_GPU();
  const uint32_t width = GetParam();
  const NormRows rows = make_rows(width, tokens);
  Array<float> x(rows.x), weight(rows.weight), residual(rows.residual), y(rows.x.size());
  y.poison();
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = x.pointer();
  args.buffers[1] = weight.pointer();
  args.buffers[2] = y.pointer();
  args.buffers[3] = residual.pointer();
  Kernel kernel(norm_spec(width, true), {.threads = 256});
  kernel.run(args, {.n_tokens = tokens, .start_position = 0, .n_outputs = 0, .reserved = 0}, tokens,
             1);
  const std::vector<float> out = y.download();
  for (size_t i = 0; i < out.size(); ++i) {
    const double exact = rows.exact[i] + rows.residual[i];
    ASSERT_NEAR(out[i], exact, 1e-6 * (std::abs(rows.exact[i]) + std::abs(rows.residual[i]))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormWidth, testing::Values(64u, 100u, 576u, 4096u));

TEST(Norm, values_past_the_f16_range_are_clamped_and_counted) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 64;
  std::vector<float> values(width, 1.0f), weights(width, 1.0f);
  weights[3] = 1e6f, weights[9] = -1e6f;
  Array<float> x(values), weight(weights);
  Array<uint16_t> y(width * 8);
  y.zero();
  Array<uint32_t> saturated(std::vector<uint32_t>{0});
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = x.pointer();
  args.buffers[1] = weight.pointer();
  args.buffers[2] = y.pointer();
  args.operand_rows = 8;
  args.saturated = saturated.pointer();
  Kernel kernel(norm_spec(width, false), {.threads = 256});
  kernel.run(args, {.n_tokens = 1, .start_position = 0, .n_outputs = 0, .reserved = 0}, 1, 1);
  const std::vector<uint16_t> halves = y.download();
  EXPECT_EQ(f16_to_f32(halves[operand_index(3, 0, 8)]), 65504.0f);
  EXPECT_EQ(f16_to_f32(halves[operand_index(9, 0, 8)]), -65504.0f);
  EXPECT_EQ(saturated.download()[0], 2u);
}

TEST(NormMutants, fail_the_comparison) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 576;
  const NormRows rows = make_rows(width, 1);
  const std::pair<const char*, const char*> changes[] = {
      {"static_cast<float>(s.width)), s.eps)", "static_cast<float>(s.width)), s.eps * 1e4f)"},
      {"__fdiv_rn(sum, static_cast<float>(s.width))",
       "__fdiv_rn(sum, static_cast<float>(s.width + 1))"},
      {"fmaf(value, value, squares)", "fmaf(value, values[0], squares)"}};
  for (const auto& [from, to] : changes) {
    Kernel kernel(compile_mutant(norm_spec(width, true), "templates/cuda/norm.cuh", from, to),
                  {.threads = 256});
    std::vector<float> zeros(width, 0);
    Array<float> x(rows.x), weight(rows.weight), residual(zeros), y(width);
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = x.pointer();
    args.buffers[1] = weight.pointer();
    args.buffers[2] = y.pointer();
    args.buffers[3] = residual.pointer();
    kernel.run(args, {.n_tokens = 1, .start_position = 0, .n_outputs = 0, .reserved = 0}, 1, 1);
    const std::vector<float> out = y.download();
    bool differs = false;
    for (uint32_t i = 0; i < width; ++i) {
      differs |= !(std::abs(out[i] - rows.exact[i]) <= 1e-6 * std::abs(rows.exact[i]));
    }
    EXPECT_TRUE(differs) << to;
  }
}

}  // namespace
}  // namespace quern::test
