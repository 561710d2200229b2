#pragma once

#include "templates/spec/gemm.h"

// Launch shapes of the GPU's GEMM kernels, from the spec alone: used by the kernel, the planner and
// the executor.

namespace quern::spec {

struct LaunchShape {
  u32 threads = 0;
  u32 min_blocks = 1;    ///< Blocks a multiprocessor must hold at least (launch bound).
  u32 shared_bytes = 0;  ///< Dynamic shared memory.
  u32 grid_x = 1, grid_y = 1;
};

/// K values of a GPU weight cell.
constexpr u32 gpu_cell_k(QuantType type) {
  return type == QuantType::q4_k || type == QuantType::q5_k || type == QuantType::q6_k ? 256 : 64;
}
/// Bytes of a GPU weight cell of 16 rows; 0 for types that are decoded to f16 cells when the model
/// is loaded.
constexpr u32 gpu_cell_bytes(QuantType type) {
  switch (type) {
    case QuantType::q4_k:
      return 16 * 144;
    case QuantType::q5_k:
      return 16 * 176;
    case QuantType::q6_k:
      return 16 * 210;
    case QuantType::q4_0:
      return 16 * 36;
    case QuantType::q8_0:
      return 16 * 68;
    case QuantType::f16:
      return 16 * 128;
    default:
      return 0;
  }
}
/// The type a weight of `type` has in GPU memory: its own, or f16.
constexpr QuantType gpu_resident_type(QuantType type) {
  return gpu_cell_bytes(type) != 0 ? type : QuantType::f16;
}

constexpr u32 gpu_row_tiles(u32 rows) {
  return (rows + 127) / 128;
}

/// Slots of the weight ring: two whole cells of 256 K, or one cell of 64 K for each slab in flight.
constexpr u32 gemm_weight_slots(QuantType type, u32 stages) {
  return gpu_cell_k(type) == 256 ? 2 : stages;
}

constexpr u32 gemm_tile_shared_bytes(const GemmSpec& s) {
  u32 weights = 0;
  for (u32 i = 0; i < s.n_segments; ++i) {
    const u32 bytes =
        gemm_weight_slots(s.segments[i].type, s.stages) * 8 * gpu_cell_bytes(s.segments[i].type);
    weights = bytes > weights ? bytes : weights;
  }
  return s.stages * s.tile_tokens * 128 + weights;
}

/// Decode: warps that share their row group with others, and all warps of a block.
constexpr u32 gemv_sharing_warps(const GemmSpec& s) {
  return s.shared_groups * s.sharers;
}
constexpr u32 gemv_warps(const GemmSpec& s) {
  return s.tile_cells - s.shared_groups + gemv_sharing_warps(s);
}
/// Bytes of a warp's ring of cells.
constexpr u32 gemv_ring_bytes(const GemmSpec& s) {
  u32 cell = 0;
  for (u32 i = 0; i < s.n_segments; ++i) {
    const u32 bytes = gpu_cell_bytes(s.segments[i].type);
    cell = bytes > cell ? bytes : cell;
  }
  return s.stages * cell;
}
/// What a sharing warp takes over: four sums a lane, and the barrier of its turn.
inline constexpr u32 gemv_sums_bytes = 32 * 16, gemv_turn_bytes = 8;
/// Decode: x of one token, each warp's ring, sums and then barriers of the sharing warps.
constexpr u32 gemv_shared_bytes(const GemmSpec& s) {
  return (s.k + 63) / 64 * 128 + gemv_warps(s) * gemv_ring_bytes(s) +
         gemv_sharing_warps(s) * (gemv_sums_bytes + gemv_turn_bytes);
}

constexpr LaunchShape launch_shape(const GemmSpec& s, u32 tokens) {
  u32 tiles = 0;
  for (u32 i = 0; i < s.n_segments; ++i) tiles += gpu_row_tiles(s.segments[i].rows);
  if (s.tile_tokens == 8) {
    return {.threads = gemv_warps(s) * 32,
            .min_blocks = 1,
            .shared_bytes = gemv_shared_bytes(s),
            .grid_x = (tiles * 8 + s.tile_cells - 1) / s.tile_cells,
            .grid_y = 1};
  }
  return {.threads = 256,
          .min_blocks = 1,
          .shared_bytes = gemm_tile_shared_bytes(s),
          .grid_x = (tokens + s.tile_tokens - 1) / s.tile_tokens,
          .grid_y = tiles};
}

}  // namespace quern::spec
