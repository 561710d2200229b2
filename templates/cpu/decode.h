#pragma once

// From codes and scales to f32 weights, the bits of models/quant's decoders. Products of a scale, a
// sub-scale and a code are exact in f32 (models/quant/decode.h), so that an affine type rounds
// once, in its fused multiply-add, and the others never.

#include "templates/cpu/cell_format.h"
#include "templates/cpu/vec.h"

namespace quern::cpu {

/// What multiplies and is added to the codes of 16 rows (or of 16 values) that share sub-scales.
struct Scale {
  f32x16 a, b;
};

/// f16 or, for mxfp4, E8M0 scales as f32; the latter halved, since its codes are doubled.
template <QuantType T>
QUERN_INLINE f32x16 scale_to_f32(u16x16 d) {
  if constexpr (T == QuantType::mxfp4) {
    const u32x16 e = widen(d);
    const u32x16 subnormal = u32x16(0x200000u) << (e & 1u);
    return from_bits(e < 2u ? subnormal : (e - 1u) << 23);
  } else {
    return to_f32(__builtin_bit_cast(f16x16, d));
  }
}

template <QuantType T>
QUERN_INLINE i8x16 code_table() {
  if constexpr (T == QuantType::mxfp4) {
    return i8x16{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  } else {
    return i8x16{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  }
}

template <QuantType T>
inline constexpr bool has_table =
    T == QuantType::iq4_nl || T == QuantType::iq4_xs || T == QuantType::mxfp4;

/// Codes 0..15 through the type's table.
template <QuantType T>
QUERN_INLINE i32x16 look_up(u8x16 codes) {
  return widen(__builtin_shufflevector(code_table<T>(), __builtin_bit_cast(i8x16, codes)));
}

/// Weights of integer codes: unsigned as stored (table and q8_0 types: already signed values).
template <QuantType T>
QUERN_INLINE f32x16 weight(i32x16 code, const Scale& scale) {
  constexpr CellFormat format = cell_format(T);
  if constexpr (format.affine) {
    return fma(scale.a, to_f32(code), scale.b);
  } else if constexpr (format.offset != 0) {
    return scale.a * to_f32(code - format.offset);
  } else {
    return scale.a * to_f32(code);
  }
}

/// Scales from d, m, and one sub-block's scale and minimum (zero where the type has none).
template <QuantType T>
QUERN_INLINE Scale make_scale(f32x16 d, f32x16 m, i32x16 scale, i32x16 min) {
  constexpr CellFormat format = cell_format(T);
  if constexpr (T == QuantType::q2_k) {
    return {d * to_f32(scale & 15), -(m * to_f32((scale >> 4) & 15))};
  } else if constexpr (format.mins) {
    return {d * to_f32(scale), -(m * to_f32(min))};
  } else if constexpr (format.scales) {
    return {d * to_f32(scale), splat(0.0f)};
  } else {
    return {d, m};
  }
}

/// f16 or bf16 elements as f32.
template <QuantType T>
QUERN_INLINE f32x16 widen_float(u16x16 v) {
  if constexpr (T == QuantType::bf16) {
    return from_bits(widen(v) << 16);
  } else {
    return to_f32(__builtin_bit_cast(f16x16, v));
  }
}

}  // namespace quern::cpu
