#pragma once

#include "templates/cuda/math.cuh"
#include "templates/spec/attention.h"

namespace quern::cuda {

using spec::u32;

inline constexpr float minus_infinity = __builtin_bit_cast(float, 0xff800000u);

/// A running softmax of the two rows (g and g + 8) that a thread shares with its quad: maximum, and this thread's part of the sum (its
/// columns of each block ascending; the quad's four parts meet when a segment ends).
struct RunningRow {
  float maximum[2] = {minus_infinity, minus_infinity};
  float sum[2] = {0, 0};
};

/// exp2((a - b) * scale) where a <= b; 0 for a = -inf, also when b is -inf.
__device__ __forceinline__ float decay(float a, float b, float scale) {
  return exp2_approx((a - (b == minus_infinity ? 0.0f : b)) * scale);
}

/// One block of scores in C fragments (`pieces` n8 pieces, already masked with -inf): they become probabilities, `factor` what the
/// sums so far are multiplied by. `halves` 1: rows g + 8 hold nothing and are left alone.
template <u32 pieces, u32 halves = 2>
__device__ __forceinline__ void online_softmax(RunningRow& row, float (&s)[pieces][4], float scale, float (&factor)[2]) {
#pragma unroll
  for (u32 h = 0; h < halves; ++h) {
    float top = row.maximum[h];
#pragma unroll
    for (u32 n = 0; n < pieces; ++n) top = fmaxf(top, fmaxf(s[n][h * 2], s[n][h * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    factor[h] = decay(row.maximum[h], top, scale);
    row.maximum[h] = top;
    const float offset = __fmul_rn(top == minus_infinity ? 0.0f : top, -scale);
    float sum = 0;
#pragma unroll
    for (u32 n = 0; n < pieces; ++n) {
#pragma unroll
      for (u32 c = 0; c < 2; ++c) {
        float& v = s[n][h * 2 + c];
        v = exp2_approx(fmaf(v, scale, offset));
        sum = __fadd_rn(sum, v);
      }
    }
    row.sum[h] = fmaf(row.sum[h], factor[h], sum);
  }
}

/// The sum of a whole row, in every lane of its quad.
__device__ __forceinline__ float quad_sum(float part) {
  part = __fadd_rn(part, __shfl_xor_sync(~0u, part, 1));
  return __fadd_rn(part, __shfl_xor_sync(~0u, part, 2));
}

/// Left fold of segments (DESIGN section 4, rule 5): `total` (maximum, sum) takes in a segment; outputs follow as
/// fma(total, before, segment * after).
struct Fold {
  float before, after;
};
__device__ __forceinline__ Fold fold_segment(float& maximum, float& sum, float segment_maximum, float segment_sum, float scale) {
  const float top = fmaxf(maximum, segment_maximum);
  const Fold f{decay(maximum, top, scale), decay(segment_maximum, top, scale)};
  sum = fmaf(sum, f.before, __fmul_rn(segment_sum, f.after));
  maximum = top;
  return f;
}
__device__ __forceinline__ float fold_value(float total, float segment, const Fold& f) {
  return fmaf(total, f.before, __fmul_rn(segment, f.after));
}

}  // namespace quern::cuda
