#pragma once

#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/norm.h"

namespace quern::cuda {

/// Rows by index, one block a row: f32 rows, or f16 operands in 16-byte pieces.
template <spec::GatherSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::step_in_between();
    const u32 row = blockIdx.x;
    if (row >= args.state->n_outputs) return;
    const u32 from = static_cast<u32>(static_cast<const int*>(args.buffers[1])[row]);
    if constexpr (s.operand != 0) {
      const unsigned short* x = static_cast<const unsigned short*>(args.buffers[0]);
      unsigned short* y = static_cast<unsigned short*>(args.buffers[2]);
      for (u32 k = threadIdx.x * 8; k < (s.width + 63) / 64 * 64; k += threads * 8) {
        *reinterpret_cast<uint4*>(y + operand_index(k, row, args.operand_rows)) =
            *reinterpret_cast<const uint4*>(x + operand_index(k, from, args.operand_rows));
      }
    } else {
      const float* x = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(from) * s.width;
      float* y = static_cast<float*>(args.buffers[2]) + static_cast<size_t>(row) * s.width;
      for (u32 i = threadIdx.x; i < s.width; i += threads) y[i] = x[i];
    }
  }
};

}  // namespace quern::cuda
