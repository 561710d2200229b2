#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/norm.h"

namespace quern::cuda {

/// y = a + b on f32 rows, one block a row.
template <spec::AddSpec s>
struct Kernel {
  static_assert(s.gate_width == 0, "the gated sum belongs to the shared expert");
  static constexpr u32 threads = 256, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::step_in_between();
    const u32 row = blockIdx.x;
    if (row >= rows_of(args)) return;
    const size_t at = static_cast<size_t>(row) * s.width;
    for (u32 i = threadIdx.x; i < s.width; i += threads) {
      static_cast<float*>(args.buffers[2])[at + i] = __fadd_rn(static_cast<const float*>(args.buffers[0])[at + i],
                                                               static_cast<const float*>(args.buffers[1])[at + i]);
    }
  }
};

}  // namespace quern::cuda
