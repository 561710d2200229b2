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

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::follow_last_launch();
    __shared__ float partial[8];
    const u32 token = blockIdx.x;
    if (token >= rows_of(args)) return;
    const float* x = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(token) * s.width;
    const float* w = static_cast<const float*>(args.buffers[1]);
    const float sum = block_sum_256(s.width, partial, [&](u32 i, float v) { return fmaf(x[i], x[i], v); });
    const float scale = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(s.width)), s.eps));
    for (u32 i = threadIdx.x; i < padded; i += threads) {
      const float v = i < s.width ? __fmul_rn(__fmul_rn(x[i], scale), w[i]) : 0.0f;
      if constexpr (s.residual != 0) {
        const size_t at = static_cast<size_t>(token) * s.width + i;
        if (i < s.width) {
          static_cast<float*>(args.buffers[2])[at] = __fadd_rn(static_cast<const float*>(args.buffers[3])[at], v);
        }
      } else {
        store_operand(args, 2, i, token, v, true);
      }
    }
  }
};

}  // namespace quern::cuda
