#pragma once

#include "templates/cuda/attention/block.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {

/// Flash attention of one token: a block of four warps runs one segment for the query heads of one KV head (the rows of the
/// fragments), in the prefill's order: each warp scores a quarter of a block's keys, all warps then hold the whole block's probabilities,
/// and each sums its quarter of the value dims. The last block of a KV head to finish folds the segments, ascending.
/// Its first keys and values come before its turn, all but the newest, which the launch before writes.
/// Buffer 5: partial results f32 [head][segment][2 + value dim]; 6: a counter for each KV head, zero between launches.
template <spec::AttentionSpec s>
struct AttentionDecode {
  using B = AttentionBlock<s>;
  static constexpr u32 threads = 128, group = s.n_head / s.n_head_kv, pieces = s.block_keys / 8;
  static constexpr u32 warp_pieces = pieces / 4, warp_dims = (s.value_dim / 16 + 3) / 4 * 16, o_pieces = warp_dims / 8;
  static constexpr u32 s_pitch = s.block_keys + 8, halves = group <= 8 ? 1 : 2;
  static_assert(group <= 16 && pieces % 8 == 0, "a KV head's query heads are the rows of one fragment");

  static __device__ __forceinline__ void run(const KernelArgs& args, unsigned char* shared) {
    __shared__ u32 ticket;
    const u32 segment = blockIdx.x, kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 position = args.state->start_position;
    const u32 first = B::first_block(position), last = position / s.block_keys;
    constexpr u32 segment_blocks = s.segment_keys / s.block_keys;
    const u32 first_segment = first / segment_blocks, last_segment = last / segment_blocks;
    if (segment < first_segment || segment > last_segment) return;  // the block of the newest key waits for the launch before
    const float scale = B::exponent_scale(args);
    RunningRow row;
    float o[o_pieces][4] = {};
    sweep(args, shared, kv_head, max(first, segment * segment_blocks), min(last, (segment + 1) * segment_blocks - 1), position,
          warp, lane, scale, row, o);
    const float sum[2] = {quad_sum(row.sum[0]), quad_sum(row.sum[1])};
    if (first_segment == last_segment) {
      for (u32 h = 0; h < 2; ++h) write(args, kv_head, (lane >> 2) + 8 * h, warp, lane, __fdiv_rn(1.0f, sum[h]), o, h);
      return;
    }
    const u32 segments = gridDim.x;
    for (u32 h = 0; h < 2; ++h) {
      const u32 r = (lane >> 2) + 8 * h;
      if (r >= group) continue;
      float* place = partial(args, kv_head * group + r, segment, segments);
      if (warp == 0 && (lane & 3) == 0) place[0] = row.maximum[h], place[1] = sum[h];
#pragma unroll
      for (u32 n = 0; n < o_pieces; ++n) {
        const u32 d = warp * warp_dims + n * 8 + (lane & 3) * 2;
        if (d < s.value_dim) *reinterpret_cast<float2*>(place + 2 + d) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
      }
    }
    __threadfence();
    __syncthreads();
    u32* counter = static_cast<u32*>(args.buffers[6]) + kv_head;
    if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u);
    __syncthreads();
    if (ticket != last_segment - first_segment) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    fold(args, kv_head, first_segment, last_segment, segments, scale);
  }

  static __device__ __forceinline__ float* partial(const KernelArgs& args, u32 head, u32 segment, u32 segments) {
    return static_cast<float*>(args.buffers[5]) + (static_cast<size_t>(head) * segments + segment) * (s.value_dim + 2);
  }

  static __device__ __forceinline__ void sweep(const KernelArgs& args, unsigned char* shared, u32 kv_head, u32 first, u32 last,
                                               u32 position, u32 warp, u32 lane, float scale, RunningRow& row,
                                               float (&o)[o_pieces][4]) {
    unsigned char* q_shared = shared;
    unsigned char* k_shared = shared + 16 * B::k_pitch;
    unsigned char* v_shared = k_shared + B::k_bytes;
    float* s_shared = reinterpret_cast<float*>(v_shared + B::v_bytes);
    const u32 end = position + 1, first_key = first * s.block_keys;
    B::template stage<s.head_dim, B::k_pitch, threads, true>(args, 1, kv_head, first_key, position, k_shared);
    B::template stage<s.value_dim, B::v_pitch, threads, true>(args, 2, kv_head, first_key, position, v_shared);
    ptx::wait_for_last_launch();
    if (position / s.block_keys == first) {
      const u32 newest = position - first_key;
      B::template stage_row<s.head_dim, B::k_pitch, threads>(args, 1, kv_head, first_key, newest, k_shared);
      B::template stage_row<s.value_dim, B::v_pitch, threads>(args, 2, kv_head, first_key, newest, v_shared);
    }
    for (u32 i = threadIdx.x; i < 16 * s.head_dim / 2; i += threads) {
      const u32 r = i / (s.head_dim / 2), pair = i % (s.head_dim / 2);
      const u32* q = static_cast<const u32*>(args.buffers[0]) + (kv_head * group + r) * (s.head_dim / 2);
      reinterpret_cast<u32*>(q_shared + r * B::k_pitch)[pair] = r < group ? q[pair] : 0;
    }
    const u32 q_address = ptx::shared_address(q_shared) + (lane & 15) * B::k_pitch + (lane >> 4) * 16;
    const int positions[2] = {static_cast<int>(position), static_cast<int>(position)};
    for (u32 block = first; block <= last; ++block) {
      const u32 key0 = block * s.block_keys, own = warp * warp_pieces * 8;
      ptx::cp_async_wait_group<0>();
      __syncthreads();
      if (block > first) B::template stage<s.value_dim, B::v_pitch, threads>(args, 2, kv_head, key0, end, v_shared);
      float mine[warp_pieces][4];
      B::template scores<warp_pieces>(k_shared, own, lane, mine,
                                      [&](u32 step, u32(&a)[4]) { ptx::ldmatrix_x4(a, q_address + step * 32); });
      B::template mask<warp_pieces>(args, mine, key0 + own, lane, positions, false);
#pragma unroll
      for (u32 n = 0; n < warp_pieces; ++n) {
#pragma unroll
        for (u32 h = 0; h < halves; ++h) {
          float2* to = reinterpret_cast<float2*>(s_shared + ((lane >> 2) + 8 * h) * s_pitch + own + n * 8 + (lane & 3) * 2);
          *to = make_float2(mine[n][2 * h], mine[n][2 * h + 1]);
        }
      }
      ptx::cp_async_wait_group<0>();
      __syncthreads();  // scores and V are there, K is free
      if (block < last) {
        B::template stage<s.head_dim, B::k_pitch, threads>(args, 1, kv_head, key0 + s.block_keys, end, k_shared);
      }
      float c[pieces][4] = {};
#pragma unroll
      for (u32 n = 0; n < pieces; ++n) {
#pragma unroll
        for (u32 h = 0; h < halves; ++h) {
          const float2 v = *reinterpret_cast<const float2*>(s_shared + ((lane >> 2) + 8 * h) * s_pitch + n * 8 + (lane & 3) * 2);
          c[n][2 * h] = v.x, c[n][2 * h + 1] = v.y;
        }
      }
      float factor[2] = {1, 1};
      online_softmax<pieces, halves>(row, c, scale, factor);
#pragma unroll
      for (u32 n = 0; n < o_pieces; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) o[n][i] = __fmul_rn(o[n][i], factor[i >> 1]);
      }
      if (warp * warp_dims < s.value_dim) B::template values<o_pieces>(v_shared, warp * warp_dims, lane, c, o);
    }
  }

  static __device__ __forceinline__ void write(const KernelArgs& args, u32 kv_head, u32 r, u32 warp, u32 lane, float inverse,
                                               const float (&o)[o_pieces][4], u32 h) {
    if (r >= group) return;
#pragma unroll
    for (u32 n = 0; n < o_pieces; ++n) {
      const u32 d = warp * warp_dims + n * 8 + (lane & 3) * 2;
      if (d < s.value_dim) {
        B::store_pair(args, 0, kv_head * group + r, d, __fmul_rn(o[n][2 * h], inverse), __fmul_rn(o[n][2 * h + 1], inverse));
      }
    }
  }

  /// Folds the segments of a KV head's query heads: one pair of value dims a thread.
  static __device__ __forceinline__ void fold(const KernelArgs& args, u32 kv_head, u32 first, u32 last, u32 segments,
                                              float scale) {
    for (u32 i = threadIdx.x; i < group * (s.value_dim / 2); i += threads) {
      const u32 head = kv_head * group + i / (s.value_dim / 2), d = i % (s.value_dim / 2) * 2;
      float maximum = minus_infinity, sum = 0, low = 0, high = 0;
      for (u32 segment = first; segment <= last; ++segment) {
        const float* place = partial(args, head, segment, segments);
        const Fold f = fold_segment(maximum, sum, __ldcg(place), __ldcg(place + 1), scale);
        low = fold_value(low, __ldcg(place + 2 + d), f);
        high = fold_value(high, __ldcg(place + 3 + d), f);
      }
      const float inverse = __fdiv_rn(1.0f, sum);
      B::store_pair(args, 0, head, d, __fmul_rn(low, inverse), __fmul_rn(high, inverse));
    }
  }
};

}  // namespace quern::cuda
