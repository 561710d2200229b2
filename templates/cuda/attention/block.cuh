#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/attention/softmax.cuh"
#include "templates/cuda/kv_cache.cuh"
#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/memory.cuh"
#include "templates/cuda/ptx/mma.cuh"
#include "templates/spec/attention.h"

namespace quern::cuda {

/// Value d of a head's output gate (buffer 4), before the sigmoid.
template <spec::AttentionSpec s>
__device__ __forceinline__ float gate_value(const KernelArgs& args, u32 token, u32 head, u32 d) {
  return static_cast<const float*>(args.buffers[4])[static_cast<size_t>(token) * s.gate_row_width + s.gate_offset +
                                                    head * s.value_dim + d];
}

/// What prefill and decode share of flash attention on mma.sync: staging of K and V blocks as f16 rows in shared memory (a row's pitch is
/// an odd number of 16-byte pieces, so ldmatrix meets no bank twice), scores, masks, probabilities times values.
template <spec::AttentionSpec s>
struct AttentionBlock {
  static constexpr u32 dim = s.head_dim, value_dim = s.value_dim, keys = s.block_keys;
  static constexpr u32 k_pitch = dim * 2 + 16, v_pitch = value_dim * 2 + 16;
  static constexpr u32 k_bytes = keys * k_pitch, v_bytes = keys * v_pitch;
  static_assert(dim % 16 == 0 && value_dim % 16 == 0 && keys % 16 == 0 && s.segment_keys % keys == 0);

  /// Factor of the exponent: 2^(score * this). A soft-cap is applied to the scores before.
  static __device__ __forceinline__ float exponent_scale(const KernelArgs& args) {
    return s.softcap > 0 ? 1.44269502f : s.scale * 1.44269502f * args.out_scale;
  }

  /// Starts copying rows [first, first + keys) of one KV head; rows from `end` on become zeros. With `hole` row `end` is left as it
  /// is: nobody has written it yet.
  template <u32 width, u32 pitch, u32 threads, bool hole = false>
  static __device__ __forceinline__ void stage(const KernelArgs& args, u32 buffer, u32 kv_head, u32 first, u32 end,
                                               unsigned char* shared) {
    const unsigned char* rows = cache_rows<width>(args, buffer, kv_head, first);
    for (u32 i = threadIdx.x; i < keys * (width / piece_values); i += threads) {
      const u32 row = i / (width / piece_values);
      if (hole && first + row == end) continue;
      stage_piece<width, pitch>(rows, row, first + row < end, i % (width / piece_values), shared);
    }
    ptx::cp_async_commit_group();
  }
  /// Row first + `row` alone.
  template <u32 width, u32 pitch, u32 threads>
  static __device__ __forceinline__ void stage_row(const KernelArgs& args, u32 buffer, u32 kv_head, u32 first, u32 row,
                                                   unsigned char* shared) {
    const unsigned char* rows = cache_rows<width>(args, buffer, kv_head, first);
    for (u32 i = threadIdx.x; i < width / piece_values; i += threads) stage_piece<width, pitch>(rows, row, true, i, shared);
    ptx::cp_async_commit_group();
  }
  static constexpr u32 piece_values = s.kv == KvType::f16 ? 8 : 2;
  template <u32 width>
  static __device__ __forceinline__ const unsigned char* cache_rows(const KernelArgs& args, u32 buffer, u32 kv_head, u32 first) {
    return static_cast<const unsigned char*>(args.buffers[buffer]) +
           (static_cast<size_t>(kv_head) * args.kv_capacity + first) * kv_row_bytes<s.kv>(width);
  }
  /// A piece of row `row` of `rows`, or zeros.
  template <u32 width, u32 pitch>
  static __device__ __forceinline__ void stage_piece(const unsigned char* rows, u32 row, bool there, u32 piece,
                                                     unsigned char* shared) {
    constexpr u32 row_bytes = kv_row_bytes<s.kv>(width);
    if constexpr (s.kv == KvType::f16) {
      ptx::cp_async_cg_16_or_zero(ptx::shared_address(shared) + row * pitch + piece * 16,
                                  rows + (there ? static_cast<size_t>(row) * row_bytes + piece * 16 : 0), there ? 16 : 0);
    } else {
      u32 halves = 0;
      if (there) {
        const unsigned char* from = rows + static_cast<size_t>(row) * row_bytes;
        const float low = kv_load<s.kv>(from, piece * 2), high = kv_load<s.kv>(from, piece * 2 + 1);
        halves = ptx::cvt_rn_f16x2_f32(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
      }
      *reinterpret_cast<u32*>(shared + row * pitch + piece * 4) = halves;
    }
  }

  /// Scores of `pieces` n8 key pieces from key `first_key` of the staged block: c = sum over dims, ascending k16.
  /// `q_step(step, a)` gives the A fragments of a k16 step.
  template <u32 pieces, class Q>
  static __device__ __forceinline__ void scores(const unsigned char* k_shared, u32 first_key, u32 lane, float (&c)[pieces][4],
                                                Q q_step) {
    const u32 matrix = lane >> 3, row = lane & 7;
    const u32 base = ptx::shared_address(k_shared) + (first_key + (matrix >> 1) * 8 + row) * k_pitch + (matrix & 1) * 16;
#pragma unroll
    for (u32 n = 0; n < pieces; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
#pragma unroll
    for (u32 step = 0; step < dim / 16; ++step) {
      u32 a[4];
      q_step(step, a);
#pragma unroll
      for (u32 n = 0; n < pieces; n += 2) {
        u32 b[4];
        ptx::ldmatrix_x4(b, base + n * 8 * k_pitch + step * 32);
        ptx::mma_m16n8k16(c[n], a, b[0], b[1]);
        ptx::mma_m16n8k16(c[n + 1], a, b[2], b[3]);
      }
    }
  }

  /// Soft-cap, then -inf where the key is not visible. `position` of rows g and g + 8.
  template <u32 pieces>
  static __device__ __forceinline__ void mask(const KernelArgs& args, float (&c)[pieces][4], u32 first_key, u32 lane,
                                              const int (&position)[2], bool whole_block_visible) {
    if constexpr (s.softcap > 0) {
      const float in = s.scale * args.out_scale / s.softcap;
#pragma unroll
      for (u32 n = 0; n < pieces; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) c[n][i] = s.softcap * tanh_f32(c[n][i] * in);
      }
    }
    if (whole_block_visible) return;
#pragma unroll
    for (u32 n = 0; n < pieces; ++n) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const int key = static_cast<int>(first_key + n * 8 + (lane & 3) * 2 + (i & 1)), query = position[i >> 1];
        const bool visible = key <= query && (s.window == 0 || query - key < static_cast<int>(s.window));
        if (!visible) c[n][i] = minus_infinity;
      }
    }
  }

  /// o[n] += P V for `pieces` n8 pieces of value dims from `first_dim`, keys ascending in k16 steps.
  template <u32 pieces>
  static __device__ __forceinline__ void values(const unsigned char* v_shared, u32 first_dim, u32 lane,
                                                const float (&p)[keys / 8][4], float (&o)[pieces][4]) {
    const u32 matrix = lane >> 3, row = lane & 7;
    const u32 base = ptx::shared_address(v_shared) + ((matrix & 1) * 8 + row) * v_pitch + (first_dim + (matrix >> 1) * 8) * 2;
#pragma unroll
    for (u32 step = 0; step < keys / 16; ++step) {
      const u32 a[4] = {ptx::cvt_rn_f16x2_f32(p[2 * step][0], p[2 * step][1]),
                        ptx::cvt_rn_f16x2_f32(p[2 * step][2], p[2 * step][3]),
                        ptx::cvt_rn_f16x2_f32(p[2 * step + 1][0], p[2 * step + 1][1]),
                        ptx::cvt_rn_f16x2_f32(p[2 * step + 1][2], p[2 * step + 1][3])};
#pragma unroll
      for (u32 n = 0; n < pieces; n += 2) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, base + step * 16 * v_pitch + n * 16);
        ptx::mma_m16n8k16(o[n], a, b[0], b[1]);
        ptx::mma_m16n8k16(o[n + 1], a, b[2], b[3]);
      }
    }
  }

  /// Writes two neighbouring value dims of a head's output as part of the f16 operand in buffer 3; the last head zeroes what pads the
  /// operand to whole slabs.
  static __device__ __forceinline__ void store_pair(const KernelArgs& args, u32 token, u32 head, u32 d, float low, float high) {
    if constexpr (s.gate != 0) {
      low = __fmul_rn(low, sigmoid_f32(gate_value<s>(args, token, head, d)));
      high = __fmul_rn(high, sigmoid_f32(gate_value<s>(args, token, head, d + 1)));
    }
    const u32 halves = operand_f16(args, low) | static_cast<u32>(operand_f16(args, high)) << 16;
    store_halves(args, token, head * value_dim + d, halves);
    constexpr u32 width = s.n_head * value_dim, tail = (width + 63) / 64 * 64 - width;
    if constexpr (tail != 0) {
      for (u32 i = d; i < tail && head + 1 == s.n_head; i += value_dim) store_halves(args, token, width + i, 0);
    }
  }
  static __device__ __forceinline__ void store_halves(const KernelArgs& args, u32 token, u32 k, u32 halves) {
    *reinterpret_cast<u32*>(static_cast<unsigned short*>(args.buffers[3]) + operand_index(k, token, args.operand_rows)) = halves;
  }

  /// First block of keys that a query at this position sees.
  static __device__ __forceinline__ u32 first_block(u32 position) {
    if constexpr (s.window == 0) return 0;
    return position + 1 > s.window ? (position + 1 - s.window) / keys : 0;
  }
};

}  // namespace quern::cuda
