#pragma once

#include "templates/cuda/gemm/epilogue.cuh"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/library_gemm.h"

namespace quern::cuda {

/// The fused GEMM's epilogue on sums that lie in memory: a block does `finish_columns` of a row.
template <spec::FinishSpec s>
struct Kernel {
  static constexpr u32 threads = 256, min_blocks = 1;
  static constexpr u32 columns = spec::all_rows(s);

  static constexpr spec::GemmSpec gemm_of() {
    spec::GemmSpec gemm{.n_segments = s.n_segments, .epilogue = s.epilogue, .bias = s.bias, .softcap = s.softcap};
    for (u32 i = 0; i < s.n_segments; ++i) gemm.segments[i].rows = s.rows[i];
    return gemm;
  }
  static constexpr spec::GemmSpec gemm = gemm_of();
  using Output = GemmOutput<gemm>;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    ptx::follow_last_launch();
    const u32 token = blockIdx.x, n_tokens = rows_of(args);
    if (token >= n_tokens) return;
    const Output out{args, n_tokens};
    const float* sums = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(token) * columns;
#pragma unroll
    for (u32 i = 0; i < spec::finish_columns / threads; ++i) {
      const u32 column = blockIdx.y * spec::finish_columns + i * threads + threadIdx.x;
      if constexpr (Output::glu) {
        const bool inside = column < columns / 2;
        const float* gate = sums + column / 8 * 16 + column % 8;
        out.store_glu(column, token, inside ? gate[0] : 0, inside ? gate[8] : 0);
      } else {
        if (column < columns) store<0>(out, token, column, 0, sums[column]);
      }
    }
  }

  template <u32 segment>
  static __device__ __forceinline__ void store(const Output& out, u32 token, u32 row, u32 first_row, float sum) {
    if (row < s.rows[segment]) {
      out.template store<segment>(first_row, row, token, sum);
    } else if constexpr (segment + 1 < s.n_segments) {
      store<segment + 1>(out, token, row - s.rows[segment], first_row + s.rows[segment], sum);
    }
  }
};

}  // namespace quern::cuda
