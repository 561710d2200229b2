#pragma once

// Over vec.h: partial vectors, dot products by a fixed tree, and softplus.

#include "templates/cpu/vec.h"

namespace quern::cpu {

constexpr u32 ceil_div(u32 a, u32 b) {
  return (a + b - 1) / b;
}
constexpr u32 round_up(u32 a, u32 b) {
  return ceil_div(a, b) * b;
}
constexpr u32 min_of(u32 a, u32 b) {
  return a < b ? a : b;
}
constexpr u32 max_of(u32 a, u32 b) {
  return a > b ? a : b;
}

/// The first min(n, 16) floats; zero in the other lanes.
QUERN_INLINE f32x16 load_n(const float* p, u32 n) {
  return n >= lanes ? load_f32(p) : load_f32(p, n);
}

QUERN_INLINE void store_n(float* p, f32x16 x, u32 n) {
  if (n >= lanes) {
    store_f32(p, x);
  } else {
    store_f32(p, x, n);
  }
}

/// sum a[i] * b[i]: element i goes to lane i mod 16 of accumulator (i / 16) mod 4.
inline float dot(const float* a, const float* b, u32 n) {
  f32x16 acc[4] = {};
  u32 i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (u32 j = 0; j < 4; ++j) {
      acc[j] = fma(load_f32(a + i + j * lanes), load_f32(b + i + j * lanes), acc[j]);
    }
  }
  for (u32 j = 0; j < 4 && i < n; i += lanes, ++j) {
    acc[j] = fma(load_n(a + i, n - i), load_n(b + i, n - i), acc[j]);
  }
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

QUERN_INLINE float square_root(float x) {
  return __builtin_elementwise_sqrt(x);
}

/// 1 / sqrt(mean(x^2) + eps)
inline float rms_scale(const float* x, u32 n, float eps) {
  return 1.0f / square_root(dot(x, x, n) / static_cast<float>(n) + eps);
}

/// log(1 + e^x), and x itself above 20. With t = e^-|x|: max(x, 0) + 2 atanh(t / (2 + t)), whose
/// series in z^2 <= 1/9 needs no logarithm.
QUERN_INLINE f32x16 softplus(f32x16 x) {
  const f32x16 t = exp(select(x < splat(0.0f), x, -x));
  const f32x16 z = t / (splat(2.0f) + t);
  const f32x16 z2 = z * z;
  f32x16 p = splat(1.0f / 17.0f);
#pragma clang loop unroll(full)
  for (u32 d = 15; d > 1; d -= 2) p = fma(p, z2, splat(1.0f / static_cast<float>(d)));
  const f32x16 log1p = splat(2.0f) * fma(p * z2, z, z);
  return select(x > splat(20.0f), x, select(x > splat(0.0f), x, splat(0.0f)) + log1p);
}

}  // namespace quern::cpu
