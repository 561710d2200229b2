#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/operand.cuh"
#include "templates/cuda/ptx/convert.cuh"
#include "templates/spec/kv_launch.h"

// The KV cache: [kv head][position][dim] in the cache's type. q8_0: blocks of 32 along the dim, 32 int8 then one f16 scale, 34
// bytes, a row's blocks together.

namespace quern::cuda {

using spec::KvType;
using spec::u32;

template <KvType type>
__host__ __device__ constexpr u32 kv_row_bytes(u32 dim) {
  return spec::kv_row_bytes(type, dim);
}

/// Value i of a row.
template <KvType type>
__device__ __forceinline__ float kv_load(const unsigned char* row, u32 i) {
  if constexpr (type == KvType::f32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (type == KvType::f16) {
    return ptx::cvt_f32_f16(reinterpret_cast<const unsigned short*>(row)[i]);
  } else if constexpr (type == KvType::bf16) {
    return ptx::cvt_f32_bf16(reinterpret_cast<const unsigned short*>(row)[i]);
  } else {
    const unsigned char* block = row + i / 32 * 34;
    const float d = ptx::cvt_f32_f16(*reinterpret_cast<const unsigned short*>(block + 32));
    return d * static_cast<float>(static_cast<signed char>(block[i % 32]));
  }
}

/// Stores a row of `dim` values that the lanes of a warp hold: lane l has values l, l + 32, ... in `v`. What does not fit an f16 is
/// clamped and counted.
template <KvType type, u32 dim>
__device__ __forceinline__ void kv_store_row(const KernelArgs& args, unsigned char* row, const float (&v)[(dim + 31) / 32],
                                             u32 lane) {
#pragma unroll
  for (u32 j = 0; j < (dim + 31) / 32; ++j) {
    const u32 i = j * 32 + lane;
    if constexpr (type == KvType::q8_0) {
      float top = i < dim ? fabsf(v[j]) : 0.0f;
#pragma unroll
      for (u32 step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      const unsigned short d_bits = ptx::cvt_rn_f16_f32(__fdiv_rn(top, 127.0f));
      const float d = ptx::cvt_f32_f16(d_bits);
      const float q = d == 0 ? 0.0f : __fdiv_rn(v[j], d);
      const int code = max(-127, min(127, __float2int_rn(q)));
      unsigned char* block = row + j * 34;
      if (i < dim) block[lane] = static_cast<unsigned char>(code);
      if (lane == 0) *reinterpret_cast<unsigned short*>(block + 32) = d_bits;
    } else if (i < dim) {
      if constexpr (type == KvType::f32) reinterpret_cast<float*>(row)[i] = v[j];
      if constexpr (type == KvType::f16) reinterpret_cast<unsigned short*>(row)[i] = saturated_f16(args, v[j]);
      if constexpr (type == KvType::bf16) reinterpret_cast<unsigned short*>(row)[i] = ptx::cvt_rn_bf16_f32(v[j]);
    }
  }
}

}  // namespace quern::cuda
