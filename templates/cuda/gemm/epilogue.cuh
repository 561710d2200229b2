#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/math.cuh"
#include "templates/cuda/operand.cuh"
#include "templates/spec/gemm.h"

namespace quern::cuda {

/// Where the sums of a GEMM go. Row numbers count within the segment; `first_row` is the segment's first output row.
template <spec::GemmSpec s>
struct GemmOutput {
  const KernelArgs& args;
  u32 n_tokens;

  static constexpr bool glu = s.epilogue == spec::Epilogue::swiglu || s.epilogue == spec::Epilogue::gelu_glu;
  static constexpr u32 out_rows() {
    u32 rows = 0;
    for (u32 i = 0; i < s.n_segments; ++i) rows += s.segments[i].rows;
    return glu ? rows / 2 : rows;
  }

  /// One sum, finished: scale, bias, residual, soft-cap.
  template <u32 segment>
  __device__ __forceinline__ void store(u32 first_row, u32 row, u32 token, float sum) const {
    if (row >= s.segments[segment].rows || token >= n_tokens) return;
    float v = sum * args.out_scale;
    if constexpr ((s.bias >> segment) & 1) {
      v = __fadd_rn(v, static_cast<const float*>(args.buffers[3 + s.n_segments + segment])[row]);
    }
    const size_t at = static_cast<size_t>(token) * out_rows() + first_row + row;
    if constexpr (s.epilogue == spec::Epilogue::residual) {
      v = __fadd_rn(static_cast<const float*>(args.buffers[2])[at], v);
    }
    if constexpr (s.softcap > 0) v = s.softcap * tanh_f32(v / s.softcap);
    static_cast<float*>(args.buffers[1])[at] = v;
  }

  /// The sums of a row of a cell's gate half and of the same row of its up half: row `row` of the product. Rows that pad the
  /// operand to whole slabs are zero, since the weights' padding is.
  __device__ __forceinline__ void store_glu(u32 row, u32 token, float gate, float up) const {
    gate = gate * args.out_scale, up = up * args.out_scale;
    const float act = s.epilogue == spec::Epilogue::swiglu ? silu_f32(gate) : gelu_tanh_f32(gate);
    store_operand(args, 1, row, token, act * up, row < (out_rows() + 63) / 64 * 64 && token < n_tokens);
  }

  /// The four sums of an m16n8 piece: rows g and g + 8 of `cell_row`, tokens `token` and `token` + 1.
  template <u32 segment>
  __device__ __forceinline__ void piece(u32 first_row, u32 cell_row, u32 lane, u32 token, const float (&c)[4]) const {
    const u32 g = lane >> 2;
    if constexpr (glu) {
      store_glu(cell_row / 2 + g, token, c[0], c[2]);
      store_glu(cell_row / 2 + g, token + 1, c[1], c[3]);
    } else {
      store<segment>(first_row, cell_row + g, token, c[0]);
      store<segment>(first_row, cell_row + g, token + 1, c[1]);
      store<segment>(first_row, cell_row + g + 8, token, c[2]);
      store<segment>(first_row, cell_row + g + 8, token + 1, c[3]);
    }
  }
};

}  // namespace quern::cuda
