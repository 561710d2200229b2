#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/kv_cache.cuh"
#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/cuda/reduce.cuh"
#include "templates/spec/qkv_post.h"

namespace quern::cuda {

/// After the fused QKV GEMM: QK-norm, RoPE, append to the cache; one warp a head of a token (full-width norm: its sum is made by
/// every warp for itself, in the same order). q becomes f16 in buffer 6 [token][n_head * head_dim] for flash attention, or
/// stays f32 in place where buffer 6 is null (wave). The rope table (buffer 1) holds every position of the context.
template <spec::QkvPostSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;
  static constexpr u32 heads = s.n_head + 2 * s.n_head_kv;
  static constexpr u32 widest = s.head_dim > s.value_dim ? s.head_dim : s.value_dim, per_lane = (widest + 31) / 32;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::step_in_between();
    const u32 token = blockIdx.x, head = blockIdx.y * (threads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= args.state->n_tokens || head >= heads) return;
    float* row = static_cast<float*>(args.buffers[0]) + static_cast<size_t>(token) * s.row_width;
    const u32 position = args.state->start_position + token;
    if (head < s.n_head) {
      query(args, row, token, head, position, lane);
    } else if (head < s.n_head + s.n_head_kv) {
      key(args, row, head - s.n_head, position, lane);
    } else {
      value(args, row, head - s.n_head - s.n_head_kv, position, lane);
    }
  }

  static __device__ __forceinline__ void query(const KernelArgs& args, float* row, u32 token, u32 head, u32 position,
                                               u32 lane) {
    float v[per_lane];
    float* x = row + s.q_offset + head * s.head_dim;
    load<s.head_dim>(v, x, lane);
    normalise(args, v, row + s.q_offset, s.n_head * s.head_dim, head, 2, lane);
    rotate(args, v, position, lane);
    unsigned short* q = static_cast<unsigned short*>(args.buffers[6]);
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) {
      const u32 i = j * 32 + lane;
      if (i >= s.head_dim) continue;
      if (q != nullptr) {
        q[(static_cast<size_t>(token) * s.n_head + head) * s.head_dim + i] = operand_f16(args, v[j]);
      } else {
        x[i] = v[j];
      }
    }
  }
  static __device__ __forceinline__ void key(const KernelArgs& args, const float* row, u32 head, u32 position, u32 lane) {
    float v[per_lane];
    load<s.head_dim>(v, row + s.k_offset + head * s.head_dim, lane);
    normalise(args, v, row + s.k_offset, s.n_head_kv * s.head_dim, head, 3, lane);
    rotate(args, v, position, lane);
    append<s.head_dim>(args, 4, v, head, position, lane);
  }
  static __device__ __forceinline__ void value(const KernelArgs& args, const float* row, u32 head, u32 position, u32 lane) {
    float v[per_lane];
    load<s.value_dim>(v, row + s.v_offset + head * s.value_dim, lane);
    append<s.value_dim>(args, 5, v, head, position, lane);
  }

  template <u32 dim>
  static __device__ __forceinline__ void load(float (&v)[per_lane], const float* x, u32 lane) {
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) v[j] = j * 32 + lane < dim ? x[j * 32 + lane] : 0.0f;
  }
  template <u32 dim>
  static __device__ __forceinline__ void append(const KernelArgs& args, u32 buffer, const float (&v)[per_lane], u32 head,
                                                u32 position, u32 lane) {
    unsigned char* row = static_cast<unsigned char*>(args.buffers[buffer]) +
                         (static_cast<size_t>(head) * args.kv_capacity + position) * kv_row_bytes<s.kv>(dim);
    float own[(dim + 31) / 32];
#pragma unroll
    for (u32 j = 0; j < (dim + 31) / 32; ++j) own[j] = v[j];
    kv_store_row<s.kv, dim>(args, row, own, lane);
  }

  /// RMSNorm of a head, or of all heads together with this head's part of the weight.
  static __device__ __forceinline__ void normalise(const KernelArgs& args, float (&v)[per_lane], const float* all, u32 width,
                                                   u32 head, u32 weight, u32 lane) {
    if constexpr (s.qk_norm == spec::QkNorm::none) return;
    const float* w = static_cast<const float*>(args.buffers[weight]);
    float sum = 0;
    u32 count = s.head_dim;
    if constexpr (s.qk_norm == spec::QkNorm::full_width) {
      for (u32 i = lane; i < width; i += 32) sum = fmaf(all[i], all[i], sum);
      count = width;
      w += head * s.head_dim;
    } else {
#pragma unroll
      for (u32 j = 0; j < per_lane; ++j) sum = fmaf(v[j], v[j], sum);
    }
    const float mean = __fdiv_rn(warp_tree_sum(sum), static_cast<float>(count));
    const float scale = __frsqrt_rn(__fadd_rn(mean, s.eps));
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) {
      const u32 i = j * 32 + lane;
      if (i < s.head_dim) v[j] = __fmul_rn(__fmul_rn(v[j], scale), w[i]);
    }
  }

  /// Value i of the head, from the lane that holds it.
  static __device__ __forceinline__ float from_head(const float (&v)[per_lane], u32 i) {
    float found = 0;
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) {
      const float candidate = __shfl_sync(~0u, v[j], i % 32);
      if (i / 32 == j) found = candidate;
    }
    return found;
  }
  static __device__ __forceinline__ void rotate(const KernelArgs& args, float (&v)[per_lane], u32 position, u32 lane) {
    if constexpr (s.rope == spec::RopePairing::none) return;
    constexpr u32 half = s.n_rot / 2;
    const float2* table = static_cast<const float2*>(args.buffers[1]) + static_cast<size_t>(position) * half;
    float rotated[per_lane];
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) {
      const u32 i = j * 32 + lane;
      const bool inside = i < s.n_rot;
      constexpr bool neox = s.rope == spec::RopePairing::neox;
      const u32 pair = neox ? i % half : i / 2;
      const bool second = neox ? i >= half : (i & 1) != 0;
      const u32 partner = inside ? (neox ? (second ? i - half : i + half) : i ^ 1) : i;
      const float other = from_head(v, partner);
      const float2 cs = inside ? table[pair] : make_float2(1, 0);
      // first: a cos - b sin; second: b cos + a sin
      rotated[j] = inside ? fmaf(v[j], cs.x, __fmul_rn(second ? other : -other, cs.y)) : v[j];
    }
#pragma unroll
    for (u32 j = 0; j < per_lane; ++j) v[j] = rotated[j];
  }
};

}  // namespace quern::cuda
