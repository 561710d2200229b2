// GEMM of the mma tier against a double-precision product of the same f16 operands, and its tile
// and decode kernels against each other, bit for bit.

#include <fmt/format.h>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

using spec::GemmSpec;

struct Problem {
  std::vector<spec::RowSegment> segments;
  uint32_t k = 0, tokens = 0;
  bool unit = false;  ///< Token t is the unit vector t: the outputs are the decoded weights.
  bool wild = false;  ///< Q4_K, Q5_K: scales of any size beside minima of any size.
};

/// How a kernel tiles it: the bits must not depend on it.
struct Tile {
  uint32_t tokens, cells, stages, shared_groups = 0, sharers = 0, turn_slabs = 0;
};

GemmSpec spec_of(const Problem& problem, const Tile& tile) {
  GemmSpec s{.n_segments = static_cast<uint32_t>(problem.segments.size()),
             .k = problem.k,
             .tile_tokens = tile.tokens,
             .tile_cells = tile.cells,
             .tier = spec::Tier::mma,
             .stages = tile.stages,
             .shared_groups = tile.shared_groups,
             .sharers = tile.sharers,
             .turn_slabs = tile.turn_slabs};
  for (size_t i = 0; i < problem.segments.size(); ++i) {
    s.segments[i] = {spec::gpu_resident_type(problem.segments[i].type), problem.segments[i].rows};
  }
  return s;
}

constexpr Tile decode_tiles[] = {{64, 8, 4}, {8, 4, 4}, {8, 2, 2, 2, 4, 8}, {8, 3, 3, 1, 2, 4}};
constexpr Tile prefill_tiles[] = {{256, 8, 4}, {64, 8, 4}, {128, 8, 3}};

/// d and dmin of every block: any f16 from zero over the smallest ones to 1/16.
void make_wild(spec::QuantType type, std::vector<std::byte>& raw, std::mt19937& random) {
  const size_t block = quant_traits(static_cast<QuantType>(type)).block_bytes;
  for (size_t at = 0; at < raw.size(); at += block) {
    const auto d = static_cast<uint16_t>(random() % 0x2c00),
               dmin = static_cast<uint16_t>(random() % 0x2c00);
    std::memcpy(raw.data() + at, &d, 2);
    std::memcpy(raw.data() + at + 2, &dmin, 2);
  }
}

/// A GEMM's device memory: random weights of each segment, packed by the repack kernel, and random
/// f16 activations.
class GemmCase {
 public:
  explicit GemmCase(const Problem& problem)
      : p_(problem), random_(static_cast<unsigned>(problem.k + problem.tokens)) {
    for (const spec::RowSegment& segment : p_.segments) {
      weights_.push_back(random_weight(segment.type, segment.rows, p_.k, random_));
      if (p_.wild) make_wild(segment.type, weights_.back(), random_);
      packed_.push_back(pack_on_gpu(segment.type, weights_.back(), segment.rows, p_.k));
      rows_ += segment.rows;
    }
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(p_.tokens) * p_.k);
    for (uint16_t& v : x_) v = f32_to_f16(p_.unit ? 0 : normal(random_));
    for (size_t t = 0; p_.unit && t < p_.tokens; ++t) x_[t * p_.k + t] = f32_to_f16(1);
    operand_rows_ = (p_.tokens + 7) / 8 * 8;
    operand_.emplace(make_operand(x_, p_.tokens, p_.k, operand_rows_));
  }

  std::vector<float> run(const Tile& tile, const CompiledKernel* variant = nullptr) {
    const GemmSpec s = spec_of(p_, tile);
    const spec::LaunchShape shape = launch_shape(s, p_.tokens);
    Kernel kernel(variant != nullptr ? *variant : compiled(s), shape);
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

  /// Outputs for unit vectors that are not the reference's weights rounded to f16.
  size_t wrong_weights(const std::vector<float>& y) const {
    size_t wrong = 0, first_row = 0;
    for (size_t segment = 0; segment < p_.segments.size(); ++segment) {
      const auto [type, rows] = p_.segments[segment];
      const std::vector<float> decoded = decode_weight(type, weights_[segment], rows, p_.k);
      for (size_t t = 0; t < p_.tokens; ++t) {
        for (size_t row = 0; row < rows; ++row) {
          const float wanted = f16_to_f32(f32_to_f16(decoded[row * p_.k + t]));
          wrong += !(y[t * rows_ + first_row + row] == wanted);
        }
      }
      first_row += rows;
    }
    return wrong;
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
          specs.emplace_back(
              spec_of({.segments = {{type, size.rows}}, .k = size.k, .tokens = size.tokens}, tile));
        }
      };
      specs.emplace_back(spec_of({.segments = {{type, 256}}, .k = 256, .tokens = 256}, {64, 8, 4}));
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
    GemmCase c({.segments = {{GetParam(), size.rows}}, .k = size.k, .tokens = size.tokens});
    const std::vector<float> first = c.run(tiles[0]);
    EXPECT_LT(c.error(first), 2e-5)
        << size.rows << " x " << size.k << ", " << size.tokens << " tokens";
    for (const Tile& tile : tiles.subspan(1)) {
      EXPECT_EQ(std::memcmp(first.data(), c.run(tile).data(), first.size() * 4), 0)
          << size.tokens << " tokens, tile of " << tile.tokens << ", " << tile.shared_groups
          << " groups shared by " << tile.sharers;
    }
  };
  for (const Size& size : decode_sizes) check(size, decode_tiles);
  for (const Size& size : prefill_sizes) check(size, prefill_tiles);
}

INSTANTIATE_TEST_SUITE_P(All, GemmTypes, testing::ValuesIn(types));

struct NamedTile {
  std::string name;
  Tile tile;
};

/// Segments of four types. Small enough for compute-sanitizer.
Problem four_types(uint32_t k, uint32_t tokens) {
  return {.segments = {{spec::QuantType::q4_k, 256},
                       {spec::QuantType::q8_0, 100},
                       {spec::QuantType::q5_k, 40},
                       {spec::QuantType::q6_k, 128}},
          .k = k,
          .tokens = tokens};
}

constexpr Tile tile_64{64, 8, 4};

/// The product is exact, and its bits are those of the tile of 64 tokens.
void expect_exact(GemmCase& c, const std::vector<float>& out) {
  EXPECT_LT(c.error(out), 2e-5);
  EXPECT_EQ(std::memcmp(out.data(), c.run(tile_64).data(), out.size() * 4), 0);
}

/// Tiles whose warps take turns.
const NamedTile turns{"turns", {8, 2, 2, 2, 4, 4}}, long_turns{"long_turns", {8, 2, 3, 2, 3, 8}},
    some_shared{"some_shared", {8, 6, 2, 2, 2, 4}};

/// Each kernel in a case of its own.
class GemmTile : public testing::TestWithParam<NamedTile> {};

TEST_P(GemmTile, segments_of_different_types_lie_side_by_side) {
  QUERN_NEED_GPU();
  const Tile& tile = GetParam().tile;
  const Problem problem = four_types(512, tile.tokens == 8 ? 3 : 70);
  precompile({spec_of(problem, tile), spec_of(problem, tile_64)});
  GemmCase c(problem);
  expect_exact(c, c.run(tile));
}

INSTANTIATE_TEST_SUITE_P(All, GemmTile,
                         testing::Values(NamedTile{"tile_64", tile_64},
                                         NamedTile{"tile_128", {128, 8, 4}},
                                         NamedTile{"tile_256", {256, 8, 2}},
                                         NamedTile{"one_warp", {8, 7, 3}}, turns, long_turns,
                                         some_shared),
                         [](const auto& tile) { return tile.param.name; });

/// Kernels whose warps take turns. racecheck follows a barrier only where every thread arrives for
/// itself, so this is what it is shown of them: the same kernel, in which all lanes arrive where
/// one arrives for its warp.
class GemmTurns : public testing::TestWithParam<NamedTile> {};

TEST_P(GemmTurns, bits_are_the_same_where_every_lane_arrives_for_itself) {
  QUERN_NEED_GPU();
  constexpr TextChange every_lane[] = {
      {"if (lane == 0) mbarrier_arrive", "mbarrier_arrive"},
      {R"("r"(shared), "r"(count))", R"("r"(shared), "r"(count * 32))"}};
  const Tile& tile = GetParam().tile;
  for (const uint32_t tokens : {1u, 3u}) {
    const Problem problem = four_types(2048, tokens);
    const CompiledKernel variant =
        compile_variant(spec_of(problem, tile), "templates/cuda/ptx/mbarrier.cuh", every_lane);
    GemmCase c(problem);
    expect_exact(c, c.run(tile, &variant));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmTurns, testing::Values(turns, long_turns, some_shared),
                         [](const auto& tile) { return tile.param.name; });

/// A K of 25 turns, the last of which comes to the first warp: each warp has several, and a thread
/// fetches x in more than one batch.
TEST(Gemm, turns_come_round_to_every_warp_of_a_row_group) {
  QUERN_NEED_GPU();
  constexpr Tile three_of_four{8, 4, 2, 4, 3, 4}, three_of_five{8, 5, 2, 5, 3, 4},
      four_of_three{8, 3, 2, 3, 4, 4}, halved{8, 14, 2, 2, 2, 4}, deep{8, 4, 4, 4, 3, 4};
  const std::vector<spec::RowSegment> mixed{{spec::QuantType::q4_k, 600},
                                            {spec::QuantType::q6_k, 200}},
      large{{spec::QuantType::q4_k, 700}}, small{{spec::QuantType::q8_0, 600}};
  const std::pair<std::vector<spec::RowSegment>, Tile> cases[] = {{mixed, three_of_four},
                                                                  {mixed, four_of_three},
                                                                  {large, three_of_five},
                                                                  {large, halved},
                                                                  {small, deep}};
  std::vector<spec::AnySpec> specs;
  for (const auto& [segments, tile] : cases) {
    for (const Tile& each : {tile, tile_64}) {
      specs.emplace_back(spec_of({.segments = segments, .k = 6400}, each));
    }
  }
  precompile(specs);
  for (const uint32_t tokens : {1u, 3u}) {
    for (const auto& [segments, tile] : cases) {
      SCOPED_TRACE(fmt::format("{} groups, {} tokens", tile.cells, tokens));
      GemmCase c({.segments = segments, .k = 6400, .tokens = tokens});
      expect_exact(c, c.run(tile));
    }
  }
}

TEST(Gemm, every_weight_is_the_rounded_reference) {
  QUERN_NEED_GPU();
  compile_all();
  for (const spec::QuantType type : types) {
    GemmCase c({.segments = {{type, 256}}, .k = 256, .tokens = 256, .unit = true});
    EXPECT_EQ(c.wrong_weights(c.run({64, 8, 4})), 0u) << static_cast<uint32_t>(type);
  }
}

/// Where minima and scales lie far apart the short form of the decoders would round twice: it is
/// not taken there.
TEST(Gemm, minima_far_from_the_scales_decode_exactly) {
  QUERN_NEED_GPU();
  for (const spec::QuantType type : {spec::QuantType::q4_k, spec::QuantType::q5_k}) {
    GemmCase unit({.segments = {{type, 256}}, .k = 256, .tokens = 256, .unit = true, .wild = true});
    EXPECT_EQ(unit.wrong_weights(unit.run({64, 8, 4})), 0u);
    GemmCase c({.segments = {{type, 256}}, .k = 256, .tokens = 5, .wild = true});
    const std::vector<float> tile = c.run({64, 8, 4});
    EXPECT_EQ(std::memcmp(tile.data(), c.run({8, 4, 4}).data(), tile.size() * 4), 0);
    EXPECT_EQ(std::memcmp(tile.data(), c.run({8, 2, 2, 2, 4, 4}).data(), tile.size() * 4), 0);
  }
}

TEST(GemmMutants, fail_the_comparison) {
  QUERN_NEED_GPU();
  const std::string cells = "templates/cuda/cells.cuh";
  const Problem wild{
      .segments = {{spec::QuantType::q4_k, 256}}, .k = 256, .tokens = 5, .wild = true};
  Problem unit = wild;
  unit.tokens = 256, unit.unit = true;
  const Tile tile{64, 8, 4}, vector{8, 4, 4};
  const CompiledKernel rows_of_one_unit =
      compile_mutant(spec_of(wild, vector), cells, "h == 0 ? 1 : 16", "1");
  GemmCase c(wild);
  EXPECT_TRUE(c.run(vector, &rows_of_one_unit) != c.run(tile));
  const CompiledKernel a_bit_short =
      compile_mutant(spec_of(unit, tile), cells, "w8 & 0x00f000f0u", "w8 & 0x007000f0u");
  GemmCase weights(unit);
  EXPECT_GT(weights.wrong_weights(weights.run(tile, &a_bit_short)), 0u);
}

}  // namespace
}  // namespace quern::test
