#pragma once

#include "templates/spec/types.h"

// Arguments of every CUDA kernel, shared by the emitter's kernels (NVRTC) and the executor.

namespace quern::cuda {

using spec::u32;

inline constexpr u32 max_buffers = 16;

/// What changes from launch to launch of a captured graph: lives in device memory, so that one
/// graph serves every decode step.
struct RunState {
  u32 n_tokens;        ///< Rows of this chunk.
  u32 start_position;  ///< Absolute position of row 0.
  u32 n_outputs;       ///< Rows whose logits are asked for.
  u32 reserved;
};

/// By value to every kernel (`__grid_constant__`). Nothing of it depends on the number of tokens.
struct KernelArgs {
  void* buffers[max_buffers];  ///< In the order that the family's spec documents.
  const RunState* state;
  u32 rows_are_outputs;  ///< 1: rows of this launch are the requested outputs.
  u32 operand_rows;  ///< Row capacity of f16 operand buffers (their 64-K slabs are this far apart).
  u32 kv_capacity;   ///< Positions that the cache has room for.
  u32* saturated;    ///< Counter of values that a conversion to f16 had to clamp; null: none.
  float x_scale;     ///< 2^s of the f16 operand written (producers) ...
  float out_scale;   ///< ... and 2^-(s_x + s_w) that a GEMM multiplies its sums by.
  float weight_scale;  ///< 2^s_w applied when weights decode.
  u32 params[2];       ///< Family-specific (documented in the spec).
};

inline constexpr const char* kernel_symbol = "quern_kernel";

#ifdef __CUDACC__
/// Rows of this launch.
__device__ __forceinline__ u32 rows_of(const KernelArgs& args) {
  return args.rows_are_outputs != 0 ? args.state->n_outputs : args.state->n_tokens;
}
#endif

}  // namespace quern::cuda
