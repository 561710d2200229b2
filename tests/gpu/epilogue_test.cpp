// Epilogues of the GEMM kernels (gated units, bias, residual, soft-cap) against double precision
// and across kernels.

#include <cmath>
#include <numbers>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

using spec::Epilogue;
using spec::GemmSpec;
using spec::QuantType;

/// How a kernel runs: its tile; the bits must not depend on it.
struct Tile {
  uint32_t tokens, cells, stages, shared_groups = 0, sharers = 0, turn_slabs = 0;
};
constexpr Tile tiles[] = {{64, 8, 4}, {128, 8, 3},        {256, 8, 2},
                          {8, 4, 4},  {8, 2, 2, 2, 4, 8}, {8, 3, 3, 1, 2, 4}};

void set_tile(GemmSpec& s, const Tile& tile) {
  s.tile_tokens = tile.tokens;
  s.tile_cells = tile.cells;
  s.stages = tile.stages;
  s.shared_groups = tile.shared_groups;
  s.sharers = tile.sharers;
  s.turn_slabs = tile.turn_slabs;
}

constexpr uint32_t k = 512;

GemmSpec glu_spec(Epilogue epilogue, uint32_t rows) {
  return {.segments = {{QuantType::q4_k, 2 * rows}},
          .n_segments = 1,
          .k = k,
          .epilogue = epilogue,
          .tier = spec::Tier::mma};
}

/// Segments of 136 and 100 rows, the second with a bias.
GemmSpec store_spec(Epilogue epilogue, float softcap) {
  return {.segments = {{QuantType::q6_k, 136}, {QuantType::q8_0, 100}},
          .n_segments = 2,
          .k = k,
          .epilogue = epilogue,
          .bias = 2,
          .softcap = softcap,
          .tier = spec::Tier::mma};
}

struct Activations {
  std::vector<uint16_t> halves;
  std::vector<float> values;
  uint32_t tokens, operand_rows;

  explicit Activations(uint32_t n) : tokens(n), operand_rows((n + 7) / 8 * 8) {
    RandomNormal random(n);
    for (size_t i = 0; i < static_cast<size_t>(n) * k; ++i) {
      halves.push_back(f32_to_f16(random()));
      values.push_back(f16_to_f32(halves.back()));
    }
  }
  /// Row `row` of decoded weights times a token, weights rounded to f16 as the kernels do.
  double dot(const std::vector<float>& weights, uint32_t row, uint32_t token) const {
    double sum = 0;
    for (uint32_t i = 0; i < k; ++i) {
      sum +=
          static_cast<double>(f16_to_f32(f32_to_f16(weights[static_cast<size_t>(row) * k + i]))) *
          values[static_cast<size_t>(token) * k + i];
    }
    return sum;
  }
};

std::vector<spec::AnySpec> all_specs() {
  std::vector<spec::AnySpec> specs;
  for (GemmSpec s : {glu_spec(Epilogue::swiglu, 200), glu_spec(Epilogue::gelu_glu, 200),
                     store_spec(Epilogue::residual, 0), store_spec(Epilogue::store, 2)}) {
    for (const Tile& tile : tiles) set_tile(s, tile), specs.emplace_back(s);
  }
  return specs;
}

double activated(Epilogue epilogue, double gate) {
  if (epilogue == Epilogue::swiglu) return gate / (1 + std::exp(-gate));
  return 0.5 * gate *
         (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate)));
}

class Glu : public testing::TestWithParam<Epilogue> {};

TEST_P(Glu, product_is_the_rounded_exact_one_in_every_kernel) {
  QUERN_NEED_GPU();
  precompile(all_specs());
  constexpr uint32_t rows = 200, padded = 256;
  std::mt19937 random(5);
  const std::vector<std::byte> gate = random_weight(QuantType::q4_k, rows, k, random);
  const std::vector<std::byte> up = random_weight(QuantType::q4_k, rows, k, random);
  const std::vector<float> gate_values = decode_weight(QuantType::q4_k, gate, rows, k);
  const std::vector<float> up_values = decode_weight(QuantType::q4_k, up, rows, k);
  const Array<std::byte> packed = pack_on_gpu(QuantType::q4_k, gate, rows, k, &up);
  for (const uint32_t tokens : {1u, 5u, 70u}) {
    const Activations x(tokens);
    Array<uint16_t> operand(make_operand(x.halves, tokens, k, x.operand_rows));
    std::vector<uint16_t> first;
    for (const Tile& tile : tiles) {
      if (tile.tokens == 8 && tokens > 8) continue;
      GemmSpec s = glu_spec(GetParam(), rows);
      set_tile(s, tile);
      Array<uint16_t> y(static_cast<size_t>(padded) * x.operand_rows);
      y.zero();
      cuda::KernelArgs args = plain_args();
      args.buffers[0] = operand.pointer();
      args.buffers[1] = y.pointer();
      args.buffers[3] = packed.pointer();
      args.operand_rows = x.operand_rows;
      args.x_scale = 8;
      Kernel kernel(s, launch_shape(s, tokens));
      kernel.run(args, {.n_tokens = tokens, .start_position = 0, .n_outputs = 0, .reserved = 0});
      const std::vector<uint16_t> out = y.download();
      if (first.empty()) first = out;
      EXPECT_TRUE(out == first) << tokens << " tokens, tile of " << tile.tokens;
    }
    for (uint32_t t = 0; t < tokens; t += 1 + tokens / 9) {
      for (uint32_t row = 0; row < rows; ++row) {
        const double exact =
            activated(GetParam(), x.dot(gate_values, row, t)) * x.dot(up_values, row, t) * 8;
        ASSERT_NEAR(f16_to_f32(first[operand_index(row, t, x.operand_rows)]), exact,
                    std::abs(exact) * 0x1p-11 + 3e-4)
            << row << ", " << t;
      }
      for (uint32_t row = rows; row < padded; ++row) {
        ASSERT_EQ(first[operand_index(row, t, x.operand_rows)] & 0x7fff, 0) << "padding";
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Glu, testing::Values(Epilogue::swiglu, Epilogue::gelu_glu));

/// Runs `store_spec` in every kernel; `outputs`: through the rows that were asked for.
void check_store(Epilogue epilogue, float softcap, bool outputs) {
  precompile(all_specs());
  const GemmSpec math = store_spec(epilogue, softcap);
  const uint32_t rows0 = math.segments[0].rows, rows1 = math.segments[1].rows, rows = rows0 + rows1;
  std::mt19937 random(9);
  const std::vector<std::byte> w0 = random_weight(QuantType::q6_k, rows0, k, random);
  const std::vector<std::byte> w1 = random_weight(QuantType::q8_0, rows1, k, random);
  const std::vector<float> v0 = decode_weight(QuantType::q6_k, w0, rows0, k),
                           v1 = decode_weight(QuantType::q8_0, w1, rows1, k);
  const Array<std::byte> p0 = pack_on_gpu(QuantType::q6_k, w0, rows0, k),
                         p1 = pack_on_gpu(QuantType::q8_0, w1, rows1, k);
  RandomNormal normal(1);
  std::vector<float> bias_values(rows1);
  for (float& v : bias_values) v = normal();
  Array<float> bias(bias_values);
  for (const uint32_t tokens : {1u, 5u, 70u}) {
    const Activations x(tokens);
    Array<uint16_t> operand(make_operand(x.halves, tokens, k, x.operand_rows));
    std::vector<float> residual_values(static_cast<size_t>(tokens) * rows), first;
    for (float& v : residual_values) v = normal();
    Array<float> residual(residual_values);
    for (const Tile& tile : tiles) {
      if (tile.tokens == 8 && tokens > 8) continue;
      GemmSpec s = math;
      set_tile(s, tile);
      Array<float> y(residual_values.size());
      y.poison();
      cuda::KernelArgs args = plain_args();
      void* buffers[] = {operand.pointer(), y.pointer(), residual.pointer(), p0.pointer(),
                         p1.pointer(),      nullptr,     bias.pointer()};
      std::copy(std::begin(buffers), std::end(buffers), args.buffers);
      args.operand_rows = x.operand_rows;
      args.out_scale = 0.5f;
      args.rows_are_outputs = outputs ? 1 : 0;
      Kernel kernel(s, launch_shape(s, tokens));
      kernel.run(args, {.n_tokens = outputs ? 1000 : tokens,
                        .start_position = 0,
                        .n_outputs = outputs ? tokens : 0,
                        .reserved = 0});
      const std::vector<float> out = y.download();
      if (first.empty()) first = out;
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * 4), 0)
          << tokens << " tokens, tile of " << tile.tokens;
    }
    for (uint32_t t = 0; t < tokens; t += 1 + tokens / 9) {
      for (uint32_t row = 0; row < rows; ++row) {
        double exact = 0.5 * (row < rows0 ? x.dot(v0, row, t) : x.dot(v1, row - rows0, t));
        if (row >= rows0) exact += bias_values[row - rows0];
        if (epilogue == Epilogue::residual)
          exact += residual_values[static_cast<size_t>(t) * rows + row];
        if (softcap > 0) exact = softcap * std::tanh(exact / softcap);
        ASSERT_NEAR(first[static_cast<size_t>(t) * rows + row], exact, 3e-5) << row << ", " << t;
      }
    }
  }
}

TEST(Store, bias_and_residual_are_added_in_f32) {
  QUERN_NEED_GPU();
  check_store(Epilogue::residual, 0, false);
}
TEST(Store, softcap_comes_last_and_rows_may_be_the_outputs) {
  QUERN_NEED_GPU();
  check_store(Epilogue::store, 2, true);
}

}  // namespace
}  // namespace quern::test
