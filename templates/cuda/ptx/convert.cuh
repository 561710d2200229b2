#pragma once

#include "templates/spec/types.h"

// Conversions between f32 and 16-bit floats, one wrapper an instruction. Halves travel as unsigned short bits, so that no
// CUDA header is needed.

namespace quern::ptx {

using spec::u32;

/// {low, high} rounded to nearest even; the PTX operand order is high first.
__device__ __forceinline__ u32 cvt_rn_f16x2_f32(float low, float high) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ unsigned short cvt_rn_f16_f32(float value) {
  unsigned short out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
}
__device__ __forceinline__ float cvt_f32_f16(unsigned short bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}
__device__ __forceinline__ float cvt_f32_bf16(unsigned short bits) {
  return __uint_as_float(static_cast<u32>(bits) << 16);
}
__device__ __forceinline__ unsigned short cvt_rn_bf16_f32(float value) {
  unsigned short out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
}

}  // namespace quern::ptx
