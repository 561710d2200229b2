#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/ptx/convert.cuh"

// f16 operands: [slab of 64 k][operand_rows][64] halves, the 16-byte piece c of token t at c xor (t & 7).

namespace quern::cuda {

/// Index, in halves, of element k of a token.
__device__ __forceinline__ size_t operand_index(u32 k, u32 token, u32 operand_rows) {
  const u32 piece = (k >> 3) & 7;
  return (static_cast<size_t>(k >> 6) * operand_rows + token) * 64 + ((piece ^ (token & 7)) << 3) + (k & 7);
}

/// f16 of a value; what does not fit is clamped and counted.
__device__ __forceinline__ unsigned short saturated_f16(const KernelArgs& args, float v) {
  if (!(fabsf(v) <= 65504.0f)) {
    if (args.saturated != nullptr) atomicAdd(args.saturated, 1u);
    v = v > 0 ? 65504.0f : v < 0 ? -65504.0f : v;  // NaN stays NaN: it must not pass unseen
  }
  return ptx::cvt_rn_f16_f32(v);
}
/// value * 2^s as f16 of an operand.
__device__ __forceinline__ unsigned short operand_f16(const KernelArgs& args, float value) {
  return saturated_f16(args, value * args.x_scale);
}

__device__ __forceinline__ void store_operand(const KernelArgs& args, u32 buffer, u32 k, u32 token, float value,
                                              bool wanted) {
  if (!wanted) return;
  static_cast<unsigned short*>(args.buffers[buffer])[operand_index(k, token, args.operand_rows)] = operand_f16(args, value);
}

}  // namespace quern::cuda
