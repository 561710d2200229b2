#pragma once

#include "templates/cuda/cells.cuh"
#include "templates/cuda/gemm/epilogue.cuh"
#include "templates/cuda/ptx/mbarrier.cuh"
#include "templates/cuda/ptx/memory.cuh"
#include "templates/cuda/ptx/mma.cuh"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// Decode GEMM (up to 8 tokens): a row group of 16 rows has one mma chain over all of K, in the prefill's order. Its cells
/// stream through a ring that belongs to one warp, so warps never wait for each other's memory. With `decoders` > 0 that many
/// warps a group decode cells in turn into fragments in shared memory and one warp multiplies; with 0 one warp does both.
template <spec::GemmSpec s, u32 segment>
struct GemmVector {
  static constexpr QuantType type = s.segments[segment].type;
  using C = Cell<type>;
  static constexpr u32 bytes = cell_bytes<type>(), cells = (s.k + C::k - 1) / C::k, planes = C::k / 64;
  static constexpr u32 depth = s.stages, rings = s.decoders == 0 ? 1 : s.decoders;
  static constexpr u32 fragment_bytes = C::k * 32, slabs = (s.k + 63) / 64;

  /// A warp's cells on their way through shared memory: every `rings`-th of a row group.
  struct Ring {
    const unsigned char* from;  ///< This lane's first 16 bytes of the cell to ask for next.
    const unsigned char* data;
    u32 to, next, slot = 0, fill = 0;
    __device__ __forceinline__ void issue(u32 lane) {
      if (next < cells) {
        const u32 at = to + fill * bytes;
#pragma unroll
        for (u32 i = 0; i + 512 <= bytes; i += 512) ptx::cp_async_cg_16(at + i, from + i);
        constexpr u32 rest = bytes % 512, whole = bytes - rest;
        if (rest != 0 && lane < rest / 16) ptx::cp_async_cg_16(at + whole, from + whole);
      }
      ptx::cp_async_commit_group();
      step();
    }
    __device__ __forceinline__ void step() {
      from += static_cast<size_t>(rings) * 8 * bytes;
      next += rings;
      fill = fill + 1 == depth ? 0 : fill + 1;
    }
    __device__ __forceinline__ const unsigned char* wait() {
      ptx::cp_async_wait_group<depth - 2>();
      __syncwarp();
      return data + slot * bytes;
    }
    __device__ __forceinline__ void release() { slot = slot + 1 == depth ? 0 : slot + 1; }
  };
  static __device__ __forceinline__ Ring make_ring(const KernelArgs& args, u32 group, u32 index, u32 lane,
                                                   unsigned char* memory) {
    const unsigned char* weights = static_cast<const unsigned char*>(args.buffers[3 + segment]) +
                                   (static_cast<size_t>(group / 8) * cells * 8 + group % 8) * bytes;
    unsigned char* data = memory + index * depth * bytes;
    return {weights + static_cast<size_t>(index) * 8 * bytes + lane * 16, data, ptx::shared_address(data) + lane * 16, index};
  }

  /// B fragments of a slab: of one token from shared memory (every column then holds it), of several from global memory.
  template <bool one_token>
  struct X {
    u32 b[4][2];
    __device__ __forceinline__ void load(const KernelArgs& args, const uint4* x_shared, u32 slab, u32 lane, u32 n_tokens) {
      if constexpr (one_token) {
        const uint4 low = x_shared[slab * 8 + (lane & 3) * 2], high = x_shared[slab * 8 + (lane & 3) * 2 + 1];
        b[0][0] = low.x, b[0][1] = low.y, b[1][0] = low.z, b[1][1] = low.w;
        b[2][0] = high.x, b[2][1] = high.y, b[3][0] = high.z, b[3][1] = high.w;
      } else {
        const u32 token = lane >> 2;
        const u32* row = reinterpret_cast<const u32*>(static_cast<const char*>(args.buffers[0]) +
                                                      (static_cast<size_t>(slab) * args.operand_rows + token) * 128);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          b[i][0] = token < n_tokens ? row[((2 * i) ^ (token & 7)) * 4 + (lane & 3)] : 0;
          b[i][1] = token < n_tokens ? row[((2 * i + 1) ^ (token & 7)) * 4 + (lane & 3)] : 0;
        }
      }
    }
  };

  template <class Columns>
  static __device__ __forceinline__ void chain(float (&c)[4], const Fragments& a, const Columns& x) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) ptx::mma_m16n8k16(c, a[i], x.b[i][0], x.b[i][1]);
  }

  /// Asks for a warp's first cells. `memory`: the row group's part of shared memory.
  static __device__ __forceinline__ void prefetch(const KernelArgs& args, u32 group, u32 role, u32 lane, unsigned char* memory) {
    if (s.decoders > 0 && role == 0) return;
    Ring ring = make_ring(args, group, s.decoders == 0 ? 0 : role - 1, lane, memory);
#pragma unroll
    for (u32 i = 0; i + 1 < depth; ++i) ring.issue(lane);
  }

  /// After `prefetch` and a barrier of the block.
  static __device__ __forceinline__ void run(const KernelArgs& args, u32 group, u32 first_row, u32 role, u32 lane,
                                             const uint4* x_shared, unsigned char* memory, u32 group_barriers) {
    const u32 n_tokens = rows_of(args);
    float c[4] = {};
    unsigned char* fragments = memory + rings * depth * bytes;
    if (s.decoders > 0 && role > 0) {
      decode_cells(args, group, role - 1, lane, memory, fragments, group_barriers);
      return;
    }
    if (n_tokens == 1) {
      sum<true>(args, group, lane, x_shared, memory, fragments, group_barriers, n_tokens, c);
    } else {
      sum<false>(args, group, lane, x_shared, memory, fragments, group_barriers, n_tokens, c);
    }
    const GemmOutput<s> out{args, n_tokens};
    out.template piece<segment>(first_row, group * 16, lane, (lane & 3) * 2, c);
  }

  template <bool one_token>
  static __device__ __forceinline__ void sum(const KernelArgs& args, u32 group, u32 lane, const uint4* x_shared,
                                             unsigned char* memory, const unsigned char* fragments, u32 barriers, u32 n_tokens,
                                             float (&c)[4]) {
    if constexpr (s.decoders == 0) {
      decode_and_multiply<one_token>(args, group, lane, x_shared, memory, n_tokens, c);
    } else {
      multiply<one_token>(args, lane, x_shared, fragments, barriers, n_tokens, c);
    }
  }

  static __device__ __forceinline__ Ring filled_ring(const KernelArgs& args, u32 group, u32 index, u32 lane,
                                                     unsigned char* memory) {
    Ring ring = make_ring(args, group, index, lane, memory);
#pragma unroll
    for (u32 i = 0; i + 1 < depth; ++i) ring.step();
    return ring;
  }

  /// One warp for everything.
  template <bool one_token>
  static __device__ __forceinline__ void decode_and_multiply(const KernelArgs& args, u32 group, u32 lane, const uint4* x_shared,
                                                             unsigned char* memory, u32 n_tokens, float (&c)[4]) {
    Ring ring = filled_ring(args, group, 0, lane, memory);
    typename C::Scales scales;
    for (u32 cell = 0; cell < cells; ++cell) {
      const unsigned char* data = ring.wait();
      ring.issue(lane);
      scales.load(data, lane, args.weight_scale);
      one_cell<one_token>(args, data, scales, cell, lane, x_shared, n_tokens, c);
      __syncwarp();
      ring.release();
    }
  }
  template <bool one_token>
  static __device__ __forceinline__ void one_cell(const KernelArgs& args, const unsigned char* data,
                                                  const typename C::Scales& scales, u32 cell, u32 lane, const uint4* x_shared,
                                                  u32 n_tokens, float (&c)[4]) {
    Fragments a[2];
    X<one_token> x[2];
    decode_plane<type>(data, scales, 0, lane, args.weight_scale, a[0]);
    x[0].load(args, x_shared, cell * planes, lane, n_tokens);
#pragma unroll
    for (u32 p = 0; p < planes; ++p) {
      if (p + 1 < planes) {
        decode_plane<type>(data, scales, p + 1, lane, args.weight_scale, a[(p + 1) & 1]);
        if (inside(cell * planes + p + 1)) x[(p + 1) & 1].load(args, x_shared, cell * planes + p + 1, lane, n_tokens);
      }
      if (inside(cell * planes + p)) chain(c, a[p & 1], x[p & 1]);
    }
  }
  /// Whether a slab of a cell is one of x: all are where K is whole cells.
  static __device__ __forceinline__ bool inside(u32 slab) { return slabs % planes == 0 || slab < slabs; }

  /// Barriers of ring r: full at 16 r, empty at 16 r + 8.
  static __device__ __forceinline__ void decode_cells(const KernelArgs& args, u32 group, u32 index, u32 lane,
                                                      unsigned char* memory, unsigned char* fragments, u32 barriers) {
    Ring ring = filled_ring(args, group, index, lane, memory);
    typename C::Scales scales;
    uint4* out = reinterpret_cast<uint4*>(fragments + index * fragment_bytes) + lane;
    const u32 full = barriers + index * 16, empty = full + 8;
    u32 phase = 1;
    for (u32 cell = index; cell < cells; cell += rings) {
      const unsigned char* data = ring.wait();
      ring.issue(lane);
      scales.load(data, lane, args.weight_scale);
      write_cell(args, data, scales, lane, out, empty, phase);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(full);
      ring.release();
      phase ^= 1;
    }
  }
  static __device__ __forceinline__ void write_cell(const KernelArgs& args, const unsigned char* data,
                                                    const typename C::Scales& scales, u32 lane, uint4* out, u32 empty, u32 phase) {
#pragma unroll
    for (u32 p = 0; p < planes; ++p) {
      Fragments a;
      decode_plane<type>(data, scales, p, lane, args.weight_scale, a);
      if (p == 0) ptx::mbarrier_wait(empty, phase);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) out[(p * 4 + i) * 32] = make_uint4(a[i][0], a[i][1], a[i][2], a[i][3]);
    }
  }

  template <bool one_token>
  static __device__ __forceinline__ void multiply(const KernelArgs& args, u32 lane, const uint4* x_shared,
                                                  const unsigned char* fragments, u32 barriers, u32 n_tokens,
                                                  float (&c)[4]) {
    u32 index = 0, phase = 0;
    Fragments a[2];
    X<one_token> x[2];
    const uint4* in = reinterpret_cast<const uint4*>(fragments) + lane;
    auto fetch = [&](u32 slab, Fragments& to, X<one_token>& xf) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const uint4 v = in[index * (fragment_bytes / 16) + (slab % planes * 4 + i) * 32];
        to[i][0] = v.x, to[i][1] = v.y, to[i][2] = v.z, to[i][3] = v.w;
      }
      xf.load(args, x_shared, slab, lane, n_tokens);
    };
    ptx::mbarrier_wait(barriers, 0);
    fetch(0, a[0], x[0]);
    for (u32 cell = 0; cell < cells; ++cell) {
#pragma unroll
      for (u32 p = 0; p < planes; ++p) {
        const u32 slab = cell * planes + p, now = planes == 1 ? 0 : p & 1, then = planes == 1 ? 0 : now ^ 1;
        if constexpr (planes == 1) {
          if (inside(slab)) chain(c, a[0], x[0]);
        }
        if (p + 1 < planes) {
          if (inside(slab + 1)) fetch(slab + 1, a[then], x[then]);
        } else {
          __syncwarp();
          if (lane == 0) ptx::mbarrier_arrive(barriers + index * 16 + 8);
          if (cell + 1 < cells) {
            if (++index == rings) index = 0, phase ^= 1;
            ptx::mbarrier_wait(barriers + index * 16, phase);
            fetch(slab + 1, a[then], x[then]);
          }
        }
        if constexpr (planes != 1) {
          if (inside(slab)) chain(c, a[now], x[now]);
        }
      }
    }
  }
};

}  // namespace quern::cuda
