#pragma once

#include "templates/cuda/cells.cuh"
#include "templates/cuda/gemm/epilogue.cuh"
#include "templates/cuda/ptx/memory.cuh"
#include "templates/cuda/ptx/mma.cuh"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// Prefill GEMM of the mma tier: a block makes 128 rows x tile_tokens tokens with eight warps, four pairs of cells by two halves
/// of the tokens; x and weights come through a cp.async pipeline of 64-K slabs.
template <spec::GemmSpec s, u32 segment>
struct GemmTile {
  static constexpr QuantType type = s.segments[segment].type;
  using C = Cell<type>;
  static constexpr u32 tokens = s.tile_tokens, stages = s.stages, slabs = (s.k + 63) / 64;
  static constexpr u32 cell_slabs = C::k / 64, weight_slots = spec::gemm_weight_slots(type, stages);
  static constexpr u32 weight_bytes = 8 * cell_bytes<type>(), x_bytes = tokens * 128;
  static constexpr u32 token_pieces = tokens / 2 / 8;  // n8 pieces of a warp
  static_assert(cell_bytes<type>() == spec::gpu_cell_bytes(type) && C::k == spec::gpu_cell_k(type));

  static __device__ __forceinline__ void load_slab(const KernelArgs& args, const unsigned char* weights, u32 slab,
                                                   u32 token0, u32 n_tokens, u32 x_shared, u32 w_shared) {
    if (slab < slabs) {
      const char* x = static_cast<const char*>(args.buffers[0]) +
                      (static_cast<size_t>(slab) * args.operand_rows + token0) * 128;
      const u32 to = x_shared + slab % stages * x_bytes;
#pragma unroll
      for (u32 i = threadIdx.x; i < tokens * 8; i += 256) {
        ptx::cp_async_cg_16_or_zero(to + i * 16, x + i * 16, token0 + i / 8 < n_tokens ? 16 : 0);
      }
      if (slab % cell_slabs == 0) {
        const u32 cell = slab / cell_slabs;
        const unsigned char* w = weights + static_cast<size_t>(cell) * weight_bytes;
        const u32 into = w_shared + cell % weight_slots * weight_bytes;
        for (u32 i = threadIdx.x; i < weight_bytes / 16; i += 256) ptx::cp_async_cg_16(into + i * 16, w + i * 16);
      }
    }
    ptx::cp_async_commit_group();
  }

  static __device__ __forceinline__ void run(const KernelArgs& args, u32 row_tile, u32 first_row, u32 token0,
                                             unsigned char* shared) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp & 3, half = warp >> 2;
    const u32 n_tokens = rows_of(args);
    constexpr u32 cells_k = (s.k + C::k - 1) / C::k;
    const unsigned char* weights = static_cast<const unsigned char*>(args.buffers[3 + segment]) +
                                   static_cast<size_t>(row_tile) * cells_k * weight_bytes;
    const u32 x_shared = ptx::shared_address(shared), w_shared = x_shared + stages * x_bytes;
    const unsigned char* w_generic = shared + stages * x_bytes;
    float c[2][token_pieces][4] = {};
#pragma unroll
    for (u32 i = 0; i + 1 < stages; ++i) load_slab(args, weights, i, token0, n_tokens, x_shared, w_shared);

    // ldmatrix: lanes 8m..8m+7 name the rows of matrix m: tokens 0-7 or 8-15 (m / 2), low or high 8 k (m % 2).
    const u32 matrix = lane >> 3, row = lane & 7;
    const u32 b_row = (half * (tokens / 2) + (matrix >> 1) * 8 + row) * 128;
    typename C::Scales scales[2];
    for (u32 slab = 0; slab < slabs; ++slab) {
      ptx::cp_async_wait_group<stages - 2>();
      __syncthreads();
      load_slab(args, weights, slab + stages - 1, token0, n_tokens, x_shared, w_shared);
      const u32 plane = slab % cell_slabs;
      const unsigned char* cells = w_generic + slab / cell_slabs % weight_slots * weight_bytes;
      typename C::Codes codes[2];
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const unsigned char* cell = cells + (pair * 2 + i) * cell_bytes<type>();
        if (plane == 0) scales[i].load(cell, lane, args.weight_scale);
        codes[i] = C::codes(cell, plane, lane);
      }
      const u32 x = x_shared + slab % stages * x_bytes + b_row;
#pragma unroll
      for (u32 half_plane = 0; half_plane < 2; ++half_plane) {
        HalfFragments a[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
          const unsigned char* cell = cells + (pair * 2 + i) * cell_bytes<type>();
          C::decode(cell, codes[i], scales[i], plane, half_plane, lane, args.weight_scale, a[i]);
        }
#pragma unroll
        for (u32 step = 0; step < 2; ++step) {
          const u32 piece = ((half_plane * 4 + step * 2 + (matrix & 1)) ^ row) * 16;
#pragma unroll
          for (u32 n = 0; n < token_pieces; n += 2) {
            u32 b[4];
            ptx::ldmatrix_x4(b, x + n * 8 * 128 + piece);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
              ptx::mma_m16n8k16(c[i][n], a[i][step], b[0], b[1]);
              ptx::mma_m16n8k16(c[i][n + 1], a[i][step], b[2], b[3]);
            }
          }
        }
      }
    }
    ptx::cp_async_wait_group<0>();
    const GemmOutput<s> out{args, n_tokens};
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
#pragma unroll
      for (u32 n = 0; n < token_pieces; ++n) {
        out.template piece<segment>(first_row, row_tile * 128 + (pair * 2 + i) * 16, lane,
                                    token0 + half * (tokens / 2) + n * 8 + (lane & 3) * 2, c[i][n]);
      }
    }
  }
};

}  // namespace quern::cuda
