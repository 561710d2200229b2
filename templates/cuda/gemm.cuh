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
  static constexpr u32 slabs = (s.k + 63) / 64;
  static constexpr bool decode = s.tile_tokens == 8;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if constexpr (decode) {
      run_decode(args, shared);
    } else {
      ptx::follow_last_launch();
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
    constexpr u32 alone = s.tile_cells - s.shared_groups, sharers = s.sharers > 0 ? s.sharers : 1;
    // From one lane, so that the compiler knows that a warp stays together.
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), sharing = warp - alone;
    const bool is_alone = warp < alone;
    GemvWarp w{.x = reinterpret_cast<uint4*>(shared), .role = is_alone ? 0 : sharing % sharers, .lane = threadIdx.x % 32};
    w.ring = shared + slabs * 128 + warp * spec::gemv_ring_bytes(s);
    if constexpr (s.shared_groups > 0) {
      w.sums = shared + slabs * 128 + spec::gemv_warps(s) * spec::gemv_ring_bytes(s) + (sharing - w.role) * spec::gemv_sums_bytes;
      w.turns = ptx::shared_address(shared) + spec::gemv_shared_bytes(s) -
                (spec::gemv_sharing_warps(s) - (sharing - w.role)) * spec::gemv_turn_bytes;
      if (!is_alone && w.lane == 0) ptx::mbarrier_init(w.turns + w.role * spec::gemv_turn_bytes, 1);
    }
    const u32 group = blockIdx.x * s.tile_cells + (is_alone ? warp : alone + sharing / sharers);
    bool any = false;
    find_group<0>(group, 0, [&]<u32 segment>(u32 in_segment, u32 first_row) {
      any = true;
      const auto wait_for_x = [&] { get_x(args, w.x); };
      if (is_alone) {
        if constexpr (alone > 0) GemmVector<s, segment, 1>::run(args, in_segment, first_row, w, wait_for_x);
      } else {
        if constexpr (s.shared_groups > 0) GemmVector<s, segment, s.sharers>::run(args, in_segment, first_row, w, wait_for_x);
      }
    });
    if (!any) get_x(args, w.x);
  }

  /// Waits for the launch before; then x of one token in shared memory, rearranged so that a lane's eight words of a slab lie
  /// together: [slab][t][step][low, high]. All threads come here once.
  static __device__ __forceinline__ void get_x(const KernelArgs& args, uint4* shared) {
    ptx::follow_last_launch();
    // Large blocks are short of registers.
    constexpr u32 pieces = slabs * 8, rounds = (pieces + threads - 1) / threads, most = threads > 256 ? 2 : 8;
    constexpr u32 batch = rounds < most ? rounds : most;
    const uint4* x = static_cast<const uint4*>(args.buffers[0]) + threadIdx.x % 8;
    u32* words = reinterpret_cast<u32*>(shared) + threadIdx.x % 8;
#pragma unroll
    for (u32 first = 0; first < rounds; first += batch) {
      uint4 v[batch];  // under way together: none waits for another to be stored
#pragma unroll
      for (u32 i = 0; i < batch; ++i) {
        const u32 piece = (first + i) * threads + threadIdx.x;
        if (piece < pieces) v[i] = x[static_cast<size_t>(piece / 8) * args.operand_rows * 8];
      }
#pragma unroll
      for (u32 i = 0; i < batch; ++i) {
        const u32 piece = (first + i) * threads + threadIdx.x;
        if (piece >= pieces) continue;
        u32* to = words + piece / 8 * 32;
        to[0] = v[i].x, to[8] = v[i].y, to[16] = v[i].z, to[24] = v[i].w;
      }
    }
    ptx::named_barrier<1, threads>();
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
