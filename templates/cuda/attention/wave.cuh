#pragma once

#include "templates/cuda/attention/block.cuh"
#include "templates/cuda/kv_cache.cuh"
#include "templates/cuda/operand.cuh"
#include "templates/cuda/reduce.cuh"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {

/// Attention in f32, any head dims, any cache: a block makes four queries of one head at a time, its scores in a scratch of its own
/// (buffer 5, f32 [block][query][kv capacity]), and takes such items in turn until none is left. Every order is by absolute position:
/// scores are one chain over the dims; sums of a row are 256 chains of keys i, i + 256, ..., then a tree; values are eight chains of
/// keys i, i + 8, ..., added ascending. Keys that a query does not see add exact zeros, so no bit depends on the chunk, on the queries
/// that share a block or on the number of blocks.
template <spec::AttentionSpec s>
struct AttentionWave {
  static constexpr u32 threads = 256, warps = 8, rows = spec::attention_wave_queries;
  static constexpr u32 dim = s.head_dim, value_dim = s.value_dim, per_lane = (value_dim + 31) / 32;
  static_assert(spec::attention_wave_shape(s, 1, 1).shared_bytes <= 227 * 1024 && value_dim <= 512);

  const KernelArgs& args;
  float* q;       ///< [rows][dim], shared.
  float* parts;   ///< [warps][rows][value_dim], shared.
  float* scratch; ///< [rows][kv capacity] of this block.
  u32 head, kv_head, token0, n, position0, first, last;

  static __device__ __forceinline__ void run(const KernelArgs& args, unsigned char* shared) {
    const u32 n_tokens = args.state->n_tokens, items = (n_tokens + rows - 1) / rows * s.n_head;
    float* q = reinterpret_cast<float*>(shared);
    float* scratch = static_cast<float*>(args.buffers[5]) + static_cast<size_t>(blockIdx.x) * rows * args.kv_capacity;
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
      const u32 head = item % s.n_head, token0 = item / s.n_head * rows, n = min(rows, n_tokens - token0);
      const u32 position0 = args.state->start_position + token0;
      const u32 first = s.window != 0 && position0 + 1 > s.window ? position0 + 1 - s.window : 0;
      AttentionWave{args,   q,      q + rows * dim,     scratch, head, head / (s.n_head / s.n_head_kv),
                    token0, n,      position0,          first,   position0 + n - 1}
          .make();
    }
  }

  __device__ __forceinline__ bool visible(u32 r, u32 key) const {
    const u32 position = position0 + r;
    return r < n && key <= position && (s.window == 0 || position - key < s.window);
  }
  __device__ __forceinline__ const unsigned char* row_of(u32 buffer, u32 width, u32 key) const {
    return static_cast<const unsigned char*>(args.buffers[buffer]) +
           (static_cast<size_t>(kv_head) * args.kv_capacity + key) * kv_row_bytes<s.kv>(width);
  }

  __device__ __forceinline__ void make() {
    __shared__ float shared_maximum[warps][rows], shared_sum[warps][rows];
    __syncthreads();  // the item before is done with shared memory and the scratch
    for (u32 i = threadIdx.x; i < rows * dim; i += threads) {
      const u32 r = i / dim;
      const float* x = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(token0 + (r < n ? r : 0)) * s.q_row_width;
      q[i] = r < n ? x[s.q_offset + head * dim + i % dim] : 0.0f;
    }
    __syncthreads();
    float maximum[rows], sum[rows];
    scores(maximum);
    reduce(maximum, shared_maximum, [](float a, float b) { return fmaxf(a, b); });
    probabilities(maximum, sum);
    reduce(sum, shared_sum, [](float a, float b) { return __fadd_rn(a, b); });
    values();
    __syncthreads();
    for (u32 i = threadIdx.x; i < n * value_dim; i += threads) {
      const u32 r = i / value_dim, d = i % value_dim;
      float total = parts[i];
#pragma unroll
      for (u32 w = 1; w < warps; ++w) total = __fadd_rn(total, parts[w * rows * value_dim + i]);
      float row_sum = sum[0];
#pragma unroll
      for (u32 j = 1; j < rows; ++j) row_sum = j == r ? sum[j] : row_sum;
      store(token0 + r, d, __fdiv_rn(total, row_sum));
    }
  }

  __device__ __forceinline__ void store(u32 token, u32 d, float v) const {
    if constexpr (s.gate != 0) v = __fmul_rn(v, sigmoid_f32(gate_value<s>(args, token, head, d)));
    store_operand(args, 3, head * value_dim + d, token, v, true);
    constexpr u32 width = s.n_head * value_dim, tail = (width + 63) / 64 * 64 - width;
    if constexpr (tail != 0) {
      for (u32 i = d; i < tail; i += value_dim) store_operand(args, 3, width + i, token, 0.0f, head + 1 == s.n_head);
    }
  }

  /// Scores of this thread's keys, -inf where a query does not see one.
  __device__ __forceinline__ void scores(float (&maximum)[rows]) {
#pragma unroll
    for (u32 r = 0; r < rows; ++r) maximum[r] = minus_infinity;
    for (u32 key = first / threads * threads + threadIdx.x; key <= last; key += threads) {
      if (key < first) continue;
      float c[rows] = {};
      dot(row_of(1, dim, key), c);
#pragma unroll
      for (u32 r = 0; r < rows; ++r) {
        float v = c[r] * s.scale;
        if constexpr (s.softcap > 0) v = s.softcap * tanh_f32(v / s.softcap);
        v = visible(r, key) ? v : minus_infinity;
        scratch[static_cast<size_t>(r) * args.kv_capacity + key] = v;
        maximum[r] = fmaxf(maximum[r], v);
      }
    }
  }
  __device__ __forceinline__ void dot(const unsigned char* k, float (&c)[rows]) const {
    if constexpr (s.kv == KvType::f32 && dim % 4 == 0) {
#pragma unroll 4
      for (u32 d = 0; d < dim; d += 4) {
        const float4 v = *reinterpret_cast<const float4*>(k + d * 4);
#pragma unroll
        for (u32 r = 0; r < rows; ++r) {
          const float4 x = *reinterpret_cast<const float4*>(q + r * dim + d);
          c[r] = fmaf(x.w, v.w, fmaf(x.z, v.z, fmaf(x.y, v.y, fmaf(x.x, v.x, c[r]))));
        }
      }
    } else {
#pragma unroll 8
      for (u32 d = 0; d < dim; ++d) {
        const float v = kv_load<s.kv>(k, d);
#pragma unroll
        for (u32 r = 0; r < rows; ++r) c[r] = fmaf(q[r * dim + d], v, c[r]);
      }
    }
  }

  /// This thread's scores become e^(score - maximum), `sum` its part of each row's sum.
  __device__ __forceinline__ void probabilities(const float (&maximum)[rows], float (&sum)[rows]) {
#pragma unroll
    for (u32 r = 0; r < rows; ++r) sum[r] = 0;
    for (u32 key = first / threads * threads + threadIdx.x; key <= last; key += threads) {
      if (key < first) continue;
#pragma unroll
      for (u32 r = 0; r < rows; ++r) {
        float& place = scratch[static_cast<size_t>(r) * args.kv_capacity + key];
        const float p = visible(r, key) ? exp_f32(place - maximum[r]) : 0.0f;
        place = p;
        sum[r] = __fadd_rn(sum[r], p);
      }
    }
  }

  /// Over the block: the tree over each 32 threads, then the eight warps ascending; every thread gets it.
  template <class Op>
  static __device__ __forceinline__ void reduce(float (&v)[rows], float (&shared)[warps][rows], Op op) {
#pragma unroll
    for (u32 r = 0; r < rows; ++r) {
#pragma unroll
      for (u32 step = 16; step > 0; step /= 2) v[r] = op(v[r], __shfl_xor_sync(~0u, v[r], step));
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][r] = v[r];
    }
    __syncthreads();  // for the sums: the probabilities are written too
#pragma unroll
    for (u32 r = 0; r < rows; ++r) {
      v[r] = shared[0][r];
#pragma unroll
      for (u32 w = 1; w < warps; ++w) v[r] = op(v[r], shared[w][r]);
    }
  }

  /// This warp's keys times their probabilities: lane l sums dims l, l + 32, ...
  __device__ __forceinline__ void values() {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float c[rows][per_lane] = {};
#pragma unroll 4
    for (u32 key = first / warps * warps + warp; key <= last; key += warps) {
      if (key < first) continue;
      const unsigned char* v = row_of(2, value_dim, key);
      float p[rows];
#pragma unroll
      for (u32 r = 0; r < rows; ++r) p[r] = scratch[static_cast<size_t>(r) * args.kv_capacity + key];
#pragma unroll
      for (u32 j = 0; j < per_lane; ++j) {
        const u32 d = j * 32 + lane;
        const float x = d < value_dim ? kv_load<s.kv>(v, d) : 0.0f;
#pragma unroll
        for (u32 r = 0; r < rows; ++r) c[r][j] = fmaf(p[r], x, c[r][j]);
      }
    }
#pragma unroll
    for (u32 r = 0; r < rows; ++r) {
#pragma unroll
      for (u32 j = 0; j < per_lane; ++j) {
        const u32 d = j * 32 + lane;
        if (d < value_dim) parts[(warp * rows + r) * value_dim + d] = c[r][j];
      }
    }
  }
};

}  // namespace quern::cuda
