#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/cells.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/library_gemm.h"

namespace quern::cuda {

/// Weight cells to plain f16 rows: a warp a cell, the eight cells of a tile a block.
template <spec::UnpackSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;
  static constexpr u32 row_halves = spec::plain_row_halves(s.k);

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::follow_last_launch();
    find_segment<0>(args, blockIdx.x, 0);
  }

  template <u32 segment>
  static __device__ __forceinline__ void find_segment(const KernelArgs& args, u32 block, u32 first_row) {
    constexpr u32 blocks = spec::unpack_blocks(s.segments[segment], s.k);
    if (block < blocks) {
      unpack_cell<segment>(args, block, first_row);
    } else if constexpr (segment + 1 < s.n_segments) {
      find_segment<segment + 1>(args, block - blocks, first_row + s.segments[segment].rows);
    }
  }

  template <u32 segment>
  static __device__ __forceinline__ void unpack_cell(const KernelArgs& args, u32 block, u32 first_row) {
    constexpr QuantType type = s.segments[segment].type;
    constexpr u32 rows = s.segments[segment].rows;
    using C = Cell<type>;
    constexpr u32 cells = (s.k + C::k - 1) / C::k;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row0 = block / cells * 128 + warp * 16, k0 = block % cells * C::k;
    if (row0 >= rows) return;
    const unsigned char* cell = static_cast<const unsigned char*>(args.buffers[1 + segment]) +
                                (static_cast<size_t>(block) * 8 + warp) * cell_bytes<type>();
    typename C::Scales scales;
    scales.load(cell, lane, args.weight_scale);
#pragma unroll
    for (u32 plane = 0; plane < C::k / 64; ++plane) {
      if (k0 + plane * 64 >= row_halves) break;
      Fragments a;
      decode_plane<type>(cell, scales, plane, lane, args.weight_scale, a);
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const u32 row = row0 + (lane >> 2) + 8 * half;
        unsigned short* out = static_cast<unsigned short*>(args.buffers[0]) +
                              static_cast<size_t>(first_row + row) * row_halves + k0 + plane * 64;
#pragma unroll
        for (u32 steps = 0; steps < 4; steps += 2) {
          // Pieces of eight k of two k16 steps: a quad holds two k of each in every lane, and leaves with one piece a lane.
          u32 v[4] = {a[steps][half], a[steps][half + 2], a[steps + 1][half], a[steps + 1][half + 2]};
          transpose_quad(v, lane);
          if (row < rows) *reinterpret_cast<uint4*>(out + steps * 16 + (lane & 3) * 8) = make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }

  /// Word j of lane i of a quad goes to word i of lane j.
  static __device__ __forceinline__ void transpose_quad(u32 (&v)[4], u32 lane) {
#pragma unroll
    for (u32 bit = 1; bit <= 2; bit *= 2) {
      const bool high = (lane & bit) != 0;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const u32 got = __shfl_xor_sync(~0u, high ? v[i] : v[i | bit], bit);
        v[i] = high ? got : v[i];
        v[i | bit] = high ? v[i | bit] : got;
      }
    }
  }
};

}  // namespace quern::cuda
