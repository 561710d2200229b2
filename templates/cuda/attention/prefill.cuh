#pragma once

#include "templates/cuda/attention/block.cuh"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {

/// Flash attention of a chunk: a block makes `rows` queries of one head, 16 a warp. K of the next block is fetched while this one's
/// values are summed, V while its scores are made. At a segment boundary the running output is parked in buffer 5 (f32
/// [token][head][value dim]) and folded with what was parked before.
template <spec::AttentionSpec s>
struct AttentionPrefill {
  using B = AttentionBlock<s>;
  static constexpr u32 warps = spec::attention_prefill_warps(s), threads = warps * 32, rows = warps * 16;
  static constexpr u32 pieces = s.block_keys / 8, o_pieces = s.value_dim / 8;
  static constexpr u32 segment_blocks = s.segment_keys / s.block_keys;

  const KernelArgs& args;
  u32 head, kv_head, lane, tile_position, end;
  int position[2];
  u32 token[2];
  float scale;
  RunningRow row;
  float total_maximum[2] = {minus_infinity, minus_infinity}, total_sum[2] = {0, 0};
  bool parked = false;
  float o[o_pieces][4] = {};

  static __device__ __forceinline__ void run(const KernelArgs& args, unsigned char* shared) {
    const u32 n_tokens = args.state->n_tokens, token0 = blockIdx.x * rows;
    if (token0 >= n_tokens) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    AttentionPrefill a{args, head, head / (s.n_head / s.n_head_kv), lane};
    const u32 start = args.state->start_position;
    a.tile_position = start + token0;
    a.end = start + n_tokens;
    for (u32 h = 0; h < 2; ++h) {
      a.token[h] = token0 + warp * 16 + (lane >> 2) + 8 * h;
      a.position[h] = static_cast<int>(start + a.token[h]);
    }
    a.scale = B::exponent_scale(args);
    a.sweep(shared, n_tokens, token0 + warp * 16);
  }

  /// Q rows of this block in shared memory, pitch as K's.
  __device__ __forceinline__ void stage_queries(unsigned char* q_shared, u32 n_tokens) const {
    const u32 to = ptx::shared_address(q_shared), token0 = tile_position - args.state->start_position;
    const unsigned char* q = static_cast<const unsigned char*>(args.buffers[0]);
    for (u32 i = threadIdx.x; i < rows * (s.head_dim / 8); i += threads) {
      const u32 r = i / (s.head_dim / 8), piece = i % (s.head_dim / 8);
      const bool inside = token0 + r < n_tokens;
      const size_t at = (static_cast<size_t>(inside ? token0 + r : 0) * s.n_head + head) * s.head_dim * 2 + piece * 16;
      ptx::cp_async_cg_16_or_zero(to + r * B::k_pitch + piece * 16, q + at, inside ? 16 : 0);
    }
    ptx::cp_async_commit_group();
  }

  __device__ __forceinline__ void sweep(unsigned char* shared, u32 n_tokens, u32 warp_token) {
    unsigned char* q_shared = shared;
    unsigned char* k_shared = shared + rows * B::k_pitch;
    unsigned char* v_shared = k_shared + B::k_bytes;
    const u32 last_position = min(tile_position + rows, end) - 1;
    const u32 first = B::first_block(tile_position), last = last_position / s.block_keys;
    stage_queries(q_shared, n_tokens);
    B::template stage<s.head_dim, B::k_pitch, threads>(args, 1, kv_head, first * s.block_keys, end, k_shared);
    const u32 q_row = (warp_token - (tile_position - args.state->start_position)) + (lane & 15);
    const u32 q_address = ptx::shared_address(q_shared) + q_row * B::k_pitch + (lane >> 4) * 16;
    // One loop a segment: a branch to `park` inside the blocks' loop would cost registers there.
    u32 block = first;
    while (true) {
      const u32 stop = min(last, (block / segment_blocks + 1) * segment_blocks - 1);
      for (; block <= stop; ++block) run_block(block, last, last_position, k_shared, v_shared, q_address);
      if (block > last) break;
      park();
    }
    finish(n_tokens);
  }

  /// Scores, softmax and values of one block of keys, whose K has been asked for.
  __device__ __forceinline__ void run_block(u32 block, u32 last, u32 last_position, unsigned char* k_shared,
                                            unsigned char* v_shared, u32 q_address) {
    const u32 key0 = block * s.block_keys;
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // K is there, and nobody reads the last V any more
    B::template stage<s.value_dim, B::v_pitch, threads>(args, 2, kv_head, key0, end, v_shared);
    float c[pieces][4];
    B::template scores<pieces>(k_shared, 0, lane, c, [&](u32 step, u32(&a)[4]) { ptx::ldmatrix_x4(a, q_address + step * 32); });
    const bool visible = key0 + s.block_keys - 1 <= tile_position && (s.window == 0 || last_position - key0 < s.window);
    B::template mask<pieces>(args, c, key0, lane, position, visible);
    float factor[2];
    online_softmax<pieces>(row, c, scale, factor);
#pragma unroll
    for (u32 n = 0; n < o_pieces; ++n) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) o[n][i] = __fmul_rn(o[n][i], factor[i >> 1]);
    }
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // V is there, and nobody reads this K any more
    if (block < last) {
      B::template stage<s.head_dim, B::k_pitch, threads>(args, 1, kv_head, key0 + s.block_keys, end, k_shared);
    }
    B::template values<o_pieces>(v_shared, 0, lane, c, o);
  }

  __device__ __forceinline__ float* parking(u32 h, u32 n) const {
    return static_cast<float*>(args.buffers[5]) + (static_cast<size_t>(token[h]) * s.n_head + head) * s.value_dim + n * 8 +
           (lane & 3) * 2;
  }

  /// Folds the segment that has ended into the total. Rows past the chunk's end have no place to park: they are never read.
  __device__ __forceinline__ void park() {
    const u32 n_tokens = args.state->n_tokens;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const Fold f = fold_segment(total_maximum[h], total_sum[h], row.maximum[h], quad_sum(row.sum[h]), scale);
      row.maximum[h] = minus_infinity, row.sum[h] = 0;
      const bool mine = token[h] < n_tokens;
      float* place = parking(h, 0);
#pragma unroll
      for (u32 n = 0; n < o_pieces; ++n) {
        float2 before = make_float2(0, 0);
        if (parked && mine) before = *reinterpret_cast<const float2*>(place + n * 8);
        before = make_float2(fold_value(before.x, o[n][2 * h], f), fold_value(before.y, o[n][2 * h + 1], f));
        if (mine) *reinterpret_cast<float2*>(place + n * 8) = before;
      }
#pragma unroll
      for (u32 n = 0; n < o_pieces; ++n) o[n][2 * h] = o[n][2 * h + 1] = 0;
    }
    parked = true;
  }

  __device__ __forceinline__ void finish(u32 n_tokens) {
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      float sum = quad_sum(row.sum[h]);
      Fold f{0, 1};
      if (parked) {
        f = fold_segment(total_maximum[h], total_sum[h], row.maximum[h], sum, scale);
        sum = total_sum[h];
      }
      if (token[h] >= n_tokens) continue;
      const float inverse = __fdiv_rn(1.0f, sum);
#pragma unroll
      for (u32 n = 0; n < o_pieces; ++n) {
        float low = o[n][2 * h], high = o[n][2 * h + 1];
        if (parked) {
          const float2 before = *reinterpret_cast<const float2*>(parking(h, n));
          low = fold_value(before.x, low, f), high = fold_value(before.y, high, f);
        }
        B::store_pair(args, token[h], head, n * 8 + (lane & 3) * 2, __fmul_rn(low, inverse), __fmul_rn(high, inverse));
      }
    }
  }
};

}  // namespace quern::cuda
