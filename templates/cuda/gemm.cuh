#pragma once

#include "templates/cuda/gemm/tile.cuh"
#include "templates/cuda/gemm/vector.cuh"
#include "templates/cuda/ptx/dependency.cuh"

namespace quern::cuda {

/// Entry of the GEMM family on the mma tier: finds the segment of the block's rows, then runs the tile or the decode kernel.
template <spec::GemmSpec s>
struct Kernel {
  static constexpr spec::LaunchShape shape = spec::launch_shape(s, 1);
  static constexpr u32 threads = shape.threads, min_blocks = shape.min_blocks;
  static constexpr bool decode = s.tile_tokens == 8;
  static constexpr u32 multipliers = s.tile_cells * 32;  ///< Threads of a decode block that multiply.

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    ptx::let_next_launch_begin();
    if constexpr (decode) {
      run_decode(args, shared);
    } else {
      ptx::wait_for_last_launch();
      const u32 token0 = blockIdx.x * s.tile_tokens;
      if (token0 >= rows_of(args)) return;
      find_tile<0>(args, blockIdx.y, 0, token0, shared);
    }
  }

  template <u32 segment>
  static __device__ __forceinline__ void find_tile(const KernelArgs& args, u32 tile, u32 first_row, u32 token0,
                                                   unsigned char* shared) {
    constexpr u32 tiles = spec::gpu_row_tiles(s.segments[segment].rows);
    if (tile < tiles) {
      GemmTile<s, segment>::run(args, tile, first_row, token0, shared);
    } else if constexpr (segment + 1 < s.n_segments) {
      find_tile<segment + 1>(args, tile - tiles, first_row + s.segments[segment].rows, token0, shared);
    }
  }

  static __device__ __forceinline__ void run_decode(const KernelArgs& args, unsigned char* shared) {
    constexpr u32 roles = s.decoders + 1, slabs = (s.k + 63) / 64;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, local = warp / roles, role = warp % roles;
    uint4* x = reinterpret_cast<uint4*>(shared);
    unsigned char* memory = shared + slabs * 128 + local * spec::gemv_group_bytes(s);
    const u32 barriers = ptx::shared_address(memory) + spec::gemv_group_bytes(s) - s.decoders * 16;
    if constexpr (s.decoders > 0) {
      if (role == 0 && lane < s.decoders * 2) ptx::mbarrier_init(barriers + lane * 8, 1);
    }
    const u32 group = blockIdx.x * s.tile_cells + local;
    find_group<0>(group, 0, [&]<u32 segment>(u32 in_segment, u32) {
      GemmVector<s, segment>::prefetch(args, in_segment, role, lane, memory);
    });
    if constexpr (s.decoders > 0) __syncthreads();  // for the barriers
    // Warps that only decode read weights alone: they need not wait for the launch before.
    if (role == 0) {
      ptx::wait_for_last_launch();
      load_x(args, x, local * 32 + lane);
      ptx::named_barrier<1, multipliers>();
    }
    find_group<0>(group, 0, [&]<u32 segment>(u32 in_segment, u32 first_row) {
      GemmVector<s, segment>::run(args, in_segment, first_row, role, lane, x, memory, barriers);
    });
  }

  /// x of one token, rearranged so that a lane's eight words of a slab lie together: [slab][t][step][low, high].
  static __device__ __forceinline__ void load_x(const KernelArgs& args, uint4* shared, u32 thread) {
    constexpr u32 pieces = (s.k + 63) / 64 * 8;
    const uint4* x = static_cast<const uint4*>(args.buffers[0]);
    u32* words = reinterpret_cast<u32*>(shared);
#pragma unroll 8
    for (u32 i = thread; i < pieces; i += multipliers) {
      const uint4 v = x[static_cast<size_t>(i / 8) * args.operand_rows * 8 + i % 8];
      u32* to = words + i / 8 * 32 + i % 8;
      to[0] = v.x, to[8] = v.y, to[16] = v.z, to[24] = v.w;
    }
  }

  /// Calls f<segment>(group within it, its first output row) for the segment that a row group lies in; nothing past the last.
  template <u32 segment, class F>
  static __device__ __forceinline__ void find_group(u32 group, u32 first_row, const F& f) {
    constexpr u32 groups = spec::gpu_row_tiles(s.segments[segment].rows) * 8;
    if (group < groups) {
      f.template operator()<segment>(group, first_row);
    } else if constexpr (segment + 1 < s.n_segments) {
      find_group<segment + 1>(group - groups, first_row + s.segments[segment].rows, f);
    }
  }
};

}  // namespace quern::cuda
