#pragma once

#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/library_gemm.h"

namespace quern::cuda {

/// An f16 operand to plain rows in 16-byte pieces, one block a row.
template <spec::FlattenSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::follow_last_launch();
    const u32 row = blockIdx.x;
    if (row >= rows_of(args)) return;
    constexpr u32 halves = spec::plain_row_halves(s.width);
    const unsigned short* x = static_cast<const unsigned short*>(args.buffers[0]);
    unsigned short* y = static_cast<unsigned short*>(args.buffers[1]) + static_cast<size_t>(row) * halves;
    for (u32 k = threadIdx.x * 8; k < halves; k += threads * 8) {
      *reinterpret_cast<uint4*>(y + k) = *reinterpret_cast<const uint4*>(x + operand_index(k, row, args.operand_rows));
    }
  }
};

}  // namespace quern::cuda
