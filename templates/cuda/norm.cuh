#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/cuda/reduce.cuh"
#include "templates/spec/norm.h"

namespace quern::cuda {

/// RMSNorm of whole rows, one block a token. Without `residual` the result is an f16 operand; with it f32: y = residual + norm.
template <spec::NormSpec s>
struct Kernel {
  static_assert(s.group == s.width && s.gate == 0, "grouped and gated norms belong to the delta-rule layers");
  static constexpr u32 threads = 256, min_blocks = 1;
  static constexpr u32 padded = (s.width + 63) / 64 * 64;

  /// Values that a thread holds in registers between the sum and the product; of longer rows none.
  static constexpr u32 per_thread = (padded + threads - 1) / threads, held = per_thread <= 32 ? per_thread : 0;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    __shared__ float partial[8];
    const float* w = static_cast<const float*>(args.buffers[1]);
    float weights[held + 1], values[held + 1];
    load(w, weights);  // does not depend on the launch before
    ptx::step_in_between();
    const u32 token = blockIdx.x;
    if (token >= rows_of(args)) return;
    const float* x = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(token) * s.width;
    load(x, values);
    float squares = 0;
#pragma unroll
    for (u32 j = 0; j < per_thread; ++j) {
      const u32 i = j * threads + threadIdx.x;
      if (!inside(i)) continue;
      const float value = held != 0 ? values[j] : x[i];
      squares = fmaf(value, value, squares);
    }
    const float sum = block_tree_sum_256(squares, partial);
    const float scale = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(s.width)), s.eps));
#pragma unroll
    for (u32 j = 0; j < per_thread; ++j) {
      const u32 i = j * threads + threadIdx.x;
      if (inside(i)) {
        store(args, i, token, __fmul_rn(__fmul_rn(held != 0 ? values[j] : x[i], scale), held != 0 ? weights[j] : w[i]));
      } else if (i < padded) {
        store(args, i, token, 0.0f);
      }
    }
  }

  static __device__ __forceinline__ bool inside(u32 i) { return s.width % threads == 0 || i < s.width; }
  static __device__ __forceinline__ void load(const float* from, float (&to)[held + 1]) {
#pragma unroll
    for (u32 j = 0; j < held; ++j) {
      const u32 i = j * threads + threadIdx.x;
      if (inside(i)) to[j] = from[i];
    }
  }
  static __device__ __forceinline__ void store(const KernelArgs& args, u32 i, u32 token, float v) {
    if constexpr (s.residual != 0) {
      const size_t at = static_cast<size_t>(token) * s.width + i;
      if (inside(i)) {
        static_cast<float*>(args.buffers[2])[at] = __fadd_rn(static_cast<const float*>(args.buffers[3])[at], v);
      }
    } else {
      store_operand(args, 2, i, token, v, true);
    }
  }
};

}  // namespace quern::cuda
