#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/cuda/raw_blocks.cuh"
#include "templates/spec/embed.h"

namespace quern::cuda {

/// Embedding rows to f32: one block a token.
template <spec::EmbedSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;
  static constexpr size_t row_bytes = static_cast<size_t>(s.width / Raw<s.type>::values) * Raw<s.type>::bytes;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::step_in_between();
    const u32 token = blockIdx.x;
    if (token >= args.state->n_tokens) return;
    const int id = static_cast<const int*>(args.buffers[0])[token];
    const Byte* row = static_cast<const Byte*>(args.buffers[1]) + id * row_bytes;
    float* y = static_cast<float*>(args.buffers[2]) + static_cast<size_t>(token) * s.width;
    for (u32 i = threadIdx.x; i < s.width; i += threads) y[i] = raw_value<s.type>(row, i) * s.scale;
  }
};

}  // namespace quern::cuda
