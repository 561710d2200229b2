// The choice of a GEMM's tile: what it must hold on every target, and what the measurements say.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <tuple>

#include "compiler/arguments.h"
#include "compiler/cuda/gemm_choice.h"
#include "models/error.h"

namespace quern::test {
namespace {

using spec::GemmSpec;
using spec::QuantType;

GemmSpec projection(QuantType type, uint32_t rows, uint32_t k) {
  return {.segments = {{type, rows}}, .n_segments = 1, .k = k, .tier = spec::Tier::mma};
}

TEST(GemmChoice, every_choice_fits_its_target_and_leaves_the_mathematics) {
  for (const cuda::TargetTraits& target : cuda::target_table()) {
    for (const QuantType type : {QuantType::q4_k, QuantType::q5_k, QuantType::q6_k, QuantType::q4_0,
                                 QuantType::q8_0, QuantType::f16}) {
      for (const auto& [rows, k] : {std::pair{64u, 64u},
                                    {576u, 576u},
                                    {4096u, 14336u},
                                    {28672u, 4096u},
                                    {128256u, 8192u}}) {
        for (const uint32_t tokens : {8u, 64u, 128u, 256u, 512u, 2048u}) {
          const GemmSpec math = projection(type, rows, k);
          std::string reason;
          const GemmSpec s = cuda::choose_gemm_tile(math, tokens, target, &reason);
          const spec::LaunchShape shape = launch_shape(s, tokens);
          EXPECT_LE(shape.shared_bytes, target.shared_bytes_block) << target.name << ": " << reason;
          EXPECT_LE(shape.threads, 1024u);
          EXPECT_EQ(s.tile_tokens == 8, tokens == 8);
          EXPECT_GE(s.stages, 2u);
          EXPECT_FALSE(reason.empty());
          EXPECT_EQ(s.segments[0].rows, rows);
          EXPECT_EQ(s.k, k);
        }
      }
    }
  }
}

/// A plan may have it, it fits, and each warp that shares has a turn.
void expect_sound(const GemmSpec& s, uint32_t tokens, const cuda::TargetTraits& target) {
  EXPECT_NO_THROW(check_spec(s, "the choice"));
  EXPECT_LE(launch_shape(s, tokens).shared_bytes, target.shared_bytes_block);
  if (s.sharers > 0) {
    EXPECT_LE(s.sharers, ((s.k + 63) / 64 + s.turn_slabs - 1) / s.turn_slabs);
  }
}

/// Blocks of every size that the choice knows, from one row group to far more than it may have.
TEST(GemmChoice, every_choice_is_sound) {
  for (const cuda::TargetTraits& target : cuda::target_table()) {
    for (const QuantType type : {QuantType::q4_k, QuantType::q6_k, QuantType::q8_0}) {
      for (uint32_t share = 1; share <= 60; ++share) {
        for (const uint32_t k : {64u, 256u, 576u, 2048u, 4096u, 8192u, 16384u, 28672u}) {
          if (k % spec::gpu_cell_k(type) != 0) continue;
          for (const uint32_t tokens : {8u, 512u}) {
            SCOPED_TRACE(fmt::format("{}, {} row groups a multiprocessor, K {}, {} tokens",
                                     target.name, share, k, tokens));
            GemmSpec s = projection(type, share * 132 * 16, k);
            expect_sound(cuda::choose_gemm_tile(s, tokens, target), tokens, target);
            s.segments[1] = {QuantType::q8_0, 256}, s.n_segments = 2;
            expect_sound(cuda::choose_gemm_tile(s, tokens, target), tokens, target);
          }
        }
      }
    }
  }
}

TEST(GemmChoice, one_token_uses_every_multiprocessor_once) {
  const cuda::TargetTraits& target = cuda::target_traits("sm_90a");
  const GemmSpec narrow =
      cuda::choose_gemm_tile(projection(QuantType::q4_k, 4096, 4096), 8, target);
  EXPECT_EQ(launch_shape(narrow, 1).grid_x, 128u);
  EXPECT_EQ(narrow.shared_groups, narrow.tile_cells);
  EXPECT_EQ(narrow.sharers, 4u);
  const GemmSpec wide = cuda::choose_gemm_tile(projection(QuantType::q4_k, 28672, 4096), 8, target);
  EXPECT_EQ(launch_shape(wide, 1).grid_x, 128u);
  EXPECT_EQ(spec::gemv_warps(wide), 16u);  // as many on each sub-core
  EXPECT_EQ(wide.shared_groups, 2u);
}

TEST(GemmChoice, tiles_are_smaller_where_large_ones_leave_multiprocessors_idle) {
  const cuda::TargetTraits& target = cuda::target_traits("sm_90a");
  const GemmSpec o = projection(QuantType::q4_k, 4096, 4096);
  EXPECT_EQ(cuda::choose_gemm_tile(o, 64, target).tile_tokens, 64u);
  EXPECT_EQ(cuda::choose_gemm_tile(o, 512, target).tile_tokens, 128u);
  EXPECT_EQ(cuda::choose_gemm_tile(o, 2048, target).tile_tokens, 256u);
  EXPECT_EQ(
      cuda::choose_gemm_tile(projection(QuantType::q4_k, 28672, 4096), 512, target).tile_tokens,
      256u);
}

TEST(GemmChoice, tiles_whose_kernels_spill_registers_are_not_chosen) {
  const auto widest = [](QuantType type, std::string_view target) {
    return cuda::choose_gemm_tile(projection(type, 4096, 4096), 2048, cuda::target_traits(target))
        .tile_tokens;
  };
  EXPECT_EQ(widest(QuantType::q4_k, "sm_80"), 128u);
  EXPECT_LE(widest(QuantType::q4_0, "sm_120"), 128u);
  EXPECT_EQ(widest(QuantType::q4_0, "sm_89"), 256u);
  EXPECT_EQ(widest(QuantType::q8_0, "sm_120"), 256u);
  GemmSpec qkv = projection(QuantType::q8_0, 4096, 4096);
  qkv.segments[1] = {QuantType::q4_0, 1024}, qkv.n_segments = 2;
  for (const char* target : {"sm_89", "sm_120"}) {
    EXPECT_LE(cuda::choose_gemm_tile(qkv, 2048, cuda::target_traits(target)).tile_tokens, 128u);
  }
}

/// By what was fastest on the card (docs/measurements-gpu.md, which says what was timed); on other
/// targets what does not spill.
TEST(GemmChoice, decode_blocks_share_row_groups) {
  struct Case {
    const char* target;
    uint32_t rows, k, cells, shared_groups, sharers, turn_slabs;
  };
  for (const Case& c : std::initializer_list<Case>{{"sm_90a", 2048, 4096, 1, 1, 4, 4},
                                                   {"sm_90a", 4096, 8192, 2, 2, 4, 4},
                                                   {"sm_90a", 4096, 14336, 2, 2, 4, 8},
                                                   {"sm_90a", 6144, 4096, 3, 3, 4, 4},
                                                   {"sm_90a", 8192, 14336, 4, 4, 3, 4},
                                                   {"sm_90a", 10240, 8192, 5, 5, 3, 4},
                                                   {"sm_90a", 12288, 4096, 6, 6, 2, 4},
                                                   {"sm_90a", 14336, 4096, 7, 0, 0, 0},
                                                   {"sm_90a", 16384, 4096, 8, 0, 0, 0},
                                                   {"sm_90a", 19200, 4096, 10, 2, 2, 4},
                                                   {"sm_90a", 25344, 4096, 12, 0, 0, 0},
                                                   {"sm_90a", 28672, 8192, 14, 2, 2, 4},
                                                   {"sm_90a", 128256, 4096, 8, 0, 0, 0},
                                                   {"sm_80", 4096, 14336, 2, 2, 4, 4},
                                                   {"sm_89", 6144, 4096, 3, 3, 2, 4},
                                                   {"sm_120", 8192, 4096, 4, 4, 2, 4},
                                                   {"sm_80", 10240, 4096, 5, 0, 0, 0},
                                                   {"sm_89", 28672, 4096, 14, 0, 0, 0}}) {
    const GemmSpec s = cuda::choose_gemm_tile(projection(QuantType::q4_k, c.rows, c.k), 8,
                                              cuda::target_traits(c.target));
    EXPECT_EQ(std::tuple(s.tile_cells, s.shared_groups, s.sharers, s.turn_slabs),
              std::tuple(c.cells, c.shared_groups, c.sharers, c.turn_slabs))
        << c.target << ": " << c.rows << " x " << c.k;
  }
}

TEST(GemmChoice, decode_kernels_that_spill_registers_are_not_chosen) {
  const cuda::TargetTraits& target = cuda::target_traits("sm_90a");
  const auto decode = [&](QuantType type, uint32_t rows, uint32_t k, uint32_t segments = 1) {
    GemmSpec s = projection(type, rows / segments, k);
    for (uint32_t i = 1; i < segments; ++i) s.segments[i] = {QuantType::q6_k, rows / segments};
    s.n_segments = segments;
    return cuda::choose_gemm_tile(s, 8, target);
  };
  // Long turns of small cells.
  EXPECT_EQ(decode(QuantType::q8_0, 4096, 14336).turn_slabs, 4u);
  // More than twelve warps: over a long K, and with several segments.
  EXPECT_EQ(decode(QuantType::q6_k, 28672, 16384).shared_groups, 0u);
  EXPECT_EQ(decode(QuantType::q8_0, 28672, 4096).shared_groups, 2u);
  EXPECT_EQ(decode(QuantType::q8_0, 28672, 4096, 2).shared_groups, 0u);
  EXPECT_EQ(decode(QuantType::q4_k, 10240, 8192).sharers, 3u);
  EXPECT_EQ(decode(QuantType::q4_k, 10240, 8192, 2).sharers, 2u);
}

TEST(GemmChoice, what_cannot_be_is_an_error) {
  const GemmSpec o = projection(QuantType::q4_k, 4096, 4096);
  EXPECT_THROW(cuda::choose_gemm_tile(o, 4, cuda::target_traits("sm_90a")), Error);
  cuda::TargetTraits tiny = cuda::target_traits("sm_90a");
  tiny.shared_bytes_block = 1024;
  EXPECT_THROW(cuda::choose_gemm_tile(o, 8, tiny), Error);
  EXPECT_THROW(cuda::choose_gemm_tile(o, 256, tiny), Error);
}

}  // namespace
}  // namespace quern::test
