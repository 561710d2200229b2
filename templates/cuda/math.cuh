#pragma once

#include "templates/spec/types.h"

// f32 functions of the GPU kernels. Fused multiply-adds are written out (the kernels compile with -fmad=false); the special
// function unit's ex2 is used where its 2 ulp are far below the f16 rounding that follows.

namespace quern::cuda {

using spec::u32;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// e^x: the argument is split so that large |x| loses no accuracy.
__device__ __forceinline__ float exp_f32(float x) {
  const float scaled = x * 1.44269502f;
  const float rest = fmaf(x, 1.44269502f, -scaled) + x * 1.92596303e-8f;
  return exp2_approx(scaled) * fmaf(rest, 0.693147182f, 1.0f);
}
__device__ __forceinline__ float sigmoid_f32(float x) { return __fdiv_rn(1.0f, 1.0f + exp_f32(-x)); }
__device__ __forceinline__ float silu_f32(float x) { return __fdiv_rn(x, 1.0f + exp_f32(-x)); }
/// tanh(x) = 1 - 2 / (e^2x + 1); near zero by its series, where that difference would cancel.
__device__ __forceinline__ float tanh_f32(float x) {
  const float a = fabsf(x);
  if (a < 0.05f) {
    const float x2 = x * x;
    return x * fmaf(x2, fmaf(x2, 0.133333333f, -0.333333333f), 1.0f);
  }
  const float t = a > 15.0f ? 1.0f : 1.0f - __fdiv_rn(2.0f, exp_f32(2.0f * a) + 1.0f);
  return x < 0 ? -t : t;
}
/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
__device__ __forceinline__ float gelu_tanh_f32(float x) {
  const float inner = 0.797884583f * fmaf(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanh_f32(inner));
}

}  // namespace quern::cuda
