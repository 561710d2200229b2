// GEMM of the mma tier against a double-precision product of the same f16 operands, and its tile
// and decode kernels against each other, bit for bit.

#include <gmock/gmock.h>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

using spec::GemmSpec;

struct Problem {
  std::vector<spec::RowSegment> segments;
  uint32_t k = 0, tokens = 0;
};

/// How a kernel tiles it: the bits must not depend on it.
struct Tile {
  uint32_t tokens, cells, stages, decoders;
};

GemmSpec spec_of(const Problem& problem, const Tile& tile) {
  GemmSpec s{.n_segments = static_cast<uint32_t>(problem.segments.size()),
             .k = problem.k,
             .tile_tokens = tile.tokens,
             .tile_cells = tile.cells,
             .tier = spec::Tier::mma,
             .stages = tile.stages,
             .decoders = tile.decoders};
  for (size_t i = 0; i < problem.segments.size(); ++i) {
    s.segments[i] = {spec::gpu_resident_type(problem.segments[i].type), problem.segments[i].rows};
  }
  return s;
}

constexpr Tile decode_tiles[] = {{64, 8, 4, 0}, {8, 4, 4, 0}, {8, 2, 2, 4}};
constexpr Tile prefill_tiles[] = {{256, 8, 4, 0}, {64, 8, 4, 0}, {128, 8, 3, 0}};

/// A GEMM's device memory: random weights of each segment, packed by the repack kernel, and random
/// f16 activations.
class GemmCase {
 public:
  explicit GemmCase(const Problem& problem)
      : p_(problem), random_(static_cast<unsigned>(problem.k + problem.tokens)) {
    for (const spec::RowSegment& segment : p_.segments) {
      weights_.push_back(random_weight(segment.type, segment.rows, p_.k, random_));
      packed_.push_back(pack_on_gpu(segment.type, weights_.back(), segment.rows, p_.k));
      rows_ += segment.rows;
    }
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(p_.tokens) * p_.k);
    for (uint16_t& v : x_) v = f32_to_f16(normal(random_));
    operand_rows_ = (p_.tokens + 7) / 8 * 8;
    operand_.emplace(make_operand(x_, p_.tokens, p_.k, operand_rows_));
  }

  std::vector<float> run(const Tile& tile) {
    const GemmSpec s = spec_of(p_, tile);
    const spec::LaunchShape shape = launch_shape(s, p_.tokens);
    Kernel kernel(s, shape);
    Array<float> y(static_cast<size_t>(p_.tokens) * rows_);
    y.poison();
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = operand_->pointer();
    args.buffers[1] = y.pointer();
    for (size_t i = 0; i < packed_.size(); ++i) args.buffers[3 + i] = packed_[i].pointer();
    args.operand_rows = operand_rows_;
    kernel.run(args, {.n_tokens = p_.tokens, .start_position = 0, .n_outputs = 0, .reserved = 0});
    return y.download();
  }

  /// Largest error of `y` over the standard deviation of the exact product.
  double error(const std::vector<float>& y) const {
    double worst = 0, squares = 0;
    size_t checked = 0, first_row = 0;
    for (size_t segment = 0; segment < p_.segments.size(); ++segment) {
      const auto [type, rows] = p_.segments[segment];
      const std::vector<float> decoded = decode_weight(type, weights_[segment], rows, p_.k);
      for (uint32_t row = 0; row < rows; row += 1 + rows / 61) {
        for (uint32_t token = 0; token < p_.tokens; token += 1 + p_.tokens / 13) {
          double exact = 0;
          for (uint32_t i = 0; i < p_.k; ++i) {
            exact += static_cast<double>(
                         f16_to_f32(f32_to_f16(decoded[static_cast<size_t>(row) * p_.k + i]))) *
                     f16_to_f32(x_[static_cast<size_t>(token) * p_.k + i]);
          }
          const double e =
              std::abs(exact - y[static_cast<size_t>(token) * rows_ + first_row + row]);
          worst = std::isfinite(e) ? std::max(worst, e) : 1e30;
          squares += exact * exact;
          ++checked;
        }
      }
      first_row += rows;
    }
    return worst / std::sqrt(squares / static_cast<double>(checked));
  }

 private:
  Problem p_;
  std::mt19937 random_;
  std::vector<std::vector<std::byte>> weights_;
  std::vector<Array<std::byte>> packed_;
  std::vector<uint16_t> x_;
  std::optional<Array<uint16_t>> operand_;
  uint32_t rows_ = 0, operand_rows_ = 0;
};

struct Size {
  uint32_t rows, k, tokens;
};
constexpr Size decode_sizes[] = {{256, 256, 8}, {200, 512, 1}, {384, 1024, 3}, {512, 2048, 5}};
constexpr Size prefill_sizes[] = {{640, 512, 17}, {256, 1024, 64}, {330, 2048, 300}};

constexpr spec::QuantType types[] = {
    spec::QuantType::q4_k, spec::QuantType::q5_k,   spec::QuantType::q6_k,
    spec::QuantType::q8_0, spec::QuantType::q4_0,   spec::QuantType::f16,
    spec::QuantType::f32,  spec::QuantType::bf16,   spec::QuantType::q4_1,
    spec::QuantType::q5_0, spec::QuantType::q5_1,   spec::QuantType::q2_k,
    spec::QuantType::q3_k, spec::QuantType::iq4_nl, spec::QuantType::iq4_xs,
    spec::QuantType::mxfp4};

/// The kernels of every case of every type, compiled together before the first.
void compile_all() {
  static const bool once = [] {
    std::vector<spec::AnySpec> specs;
    for (const spec::QuantType type : types) {
      auto add = [&](const Size& size, std::span<const Tile> tiles) {
        specs.emplace_back(repack_spec(type, size.k));
        for (const Tile& tile : tiles) {
          specs.emplace_back(spec_of({{{type, size.rows}}, size.k, size.tokens}, tile));
        }
      };
      for (const Size& size : decode_sizes) add(size, decode_tiles);
      for (const Size& size : prefill_sizes) add(size, prefill_tiles);
    }
    precompile(specs);
    return true;
  }();
  static_cast<void>(once);
}

class GemmTypes : public testing::TestWithParam<spec::QuantType> {};

TEST_P(GemmTypes, every_kernel_gives_the_same_bits_and_the_exact_product) {
  QUERN_NEED_GPU();
  compile_all();
  auto check = [](const Size& size, std::span<const Tile> tiles) {
    GemmCase c({{{GetParam(), size.rows}}, size.k, size.tokens});
    const std::vector<float> first = c.run(tiles[0]);
    EXPECT_LT(c.error(first), 2e-5)
        << size.rows << " x " << size.k << ", " << size.tokens << " tokens";
    for (const Tile& tile : tiles.subspan(1)) {
      EXPECT_EQ(std::memcmp(first.data(), c.run(tile).data(), first.size() * 4), 0)
          << size.tokens << " tokens, tile of " << tile.tokens << ", " << tile.decoders
          << " decoders";
    }
  };
  for (const Size& size : decode_sizes) check(size, decode_tiles);
  for (const Size& size : prefill_sizes) check(size, prefill_tiles);
}

INSTANTIATE_TEST_SUITE_P(All, GemmTypes, testing::ValuesIn(types));

TEST(Gemm, segments_of_different_types_lie_side_by_side) {
  QUERN_NEED_GPU();
  GemmCase c(
      {{{spec::QuantType::q4_k, 512}, {spec::QuantType::q4_k, 100}, {spec::QuantType::q6_k, 128}},
       1024,
       70});
  const std::vector<float> tile = c.run({64, 8, 4, 0});
  EXPECT_LT(c.error(tile), 2e-5);
  EXPECT_EQ(std::memcmp(tile.data(), c.run({256, 8, 4, 0}).data(), tile.size() * 4), 0);
}

}  // namespace
}  // namespace quern::test
