#pragma once

#include "templates/cuda/abi.h"
#include "templates/spec/norm.h"

namespace quern::cuda {

/// f32 rows by index, one block a row.
template <spec::GatherSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    const u32 row = blockIdx.x;
    if (row >= args.state->n_outputs) return;
    const size_t from = static_cast<size_t>(static_cast<const int*>(args.buffers[1])[row]) * s.width;
    const float* x = static_cast<const float*>(args.buffers[0]) + from;
    float* y = static_cast<float*>(args.buffers[2]) + static_cast<size_t>(row) * s.width;
    for (u32 i = threadIdx.x; i < s.width; i += threads) y[i] = x[i];
  }
};

}  // namespace quern::cuda
