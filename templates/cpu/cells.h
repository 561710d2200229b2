#pragma once

// Decoders of the cells that cell_format.h describes: 16 rows in the 16 lanes, 8 values along K at
// a time.

#include "templates/cpu/cell_format.h"
#include "templates/cpu/decode.h"
#include "templates/cpu/vec.h"

namespace quern::cpu {

template <QuantType T>
struct Cell {
  static constexpr CellFormat format = cell_format(T);
  static constexpr u32 octets_of_sub = format.sub / octet_values;

  /// Scales of sub-block `sub` of the block at `block`.
  static QUERN_INLINE Scale scale(const u8* block, u32 sub) {
    if constexpr (format.is_float()) {
      return {};
    } else {
      constexpr u32 m_at = cell_rows * format.d_bytes;
      constexpr u32 scales_at = m_at + (format.second ? 2 * cell_rows : 0);
      constexpr u32 mins_at = scales_at + (format.scales ? cell_rows * format.sub_blocks() : 0);
      f32x16 m = 0.0f;
      i32x16 scale = 0;
      i32x16 min = 0;
      if constexpr (format.second) m = to_f32(load<f16x16>(block + m_at));
      if constexpr (format.mins) min = widen(load<u8x16>(block + mins_at + cell_rows * sub));
      if constexpr (format.scales && T == QuantType::q2_k) {
        scale = widen(load<u8x16>(block + scales_at + cell_rows * sub));
      } else if constexpr (format.scales) {
        scale = widen(load<i8x16>(block + scales_at + cell_rows * sub));
      }
      return make_scale<T>(d(block), m, scale, min);
    }
  }

  /// Address of octet `octet` of a block.
  static QUERN_INLINE const u8* octet_at(const u8* block, u32 octet) {
    return block + format.header_bytes() + octet * format.octet_bytes();
  }

  /// The 8 weights of each row in the octet at `p`, by ascending k.
  static QUERN_INLINE void octet(const u8* p, const Scale& scale, f32x16 (&w)[8]) {
    if constexpr (T == QuantType::f32) {
#pragma clang loop unroll(full)
      for (u32 j = 0; j < 8; ++j) w[j] = load<f32x16>(p + 64 * j);
    } else if constexpr (format.is_float()) {
#pragma clang loop unroll(full)
      for (u32 j = 0; j < 8; ++j) w[j] = widen_float<T>(load<u16x16>(p + 32 * j));
    } else if constexpr (has_table<T>) {
#pragma clang loop unroll(full)
      for (u32 i = 0; i < 4; ++i) {
        const u8x16 pair = load<u8x16>(p + 16 * i);
        w[2 * i] = weight<T>(look_up<T>(pair & u8x16(15)), scale);
        w[2 * i + 1] = weight<T>(look_up<T>(pair >> u8x16(4)), scale);
      }
    } else if constexpr (format.bits == 8) {
#pragma clang loop unroll(full)
      for (u32 j = 0; j < 8; ++j) w[j] = weight<T>(widen(load<i8x16>(p + 16 * j)), scale);
    } else {
      constexpr u32 low_bits = format.bits >= 4 ? 4 : 2;
      constexpr u32 high_bits = format.bits - low_bits;
      // Each row of bytes is widened once and then shared by its values; were it widened value by
      // value, LLVM would take the fields from the bytes, for which x86 has no shifts.
      i32x16 low[low_bits];
      i32x16 high[high_bits + 1];
#pragma clang loop unroll(full)
      for (u32 i = 0; i < low_bits; ++i) low[i] = widen(load<u8x16>(p + 16 * i));
#pragma clang loop unroll(full)
      for (u32 i = 0; i < high_bits; ++i) high[i] = widen(load<u8x16>(p + 16 * (low_bits + i)));
#pragma clang loop unroll(full)
      for (u32 j = 0; j < 8; ++j) {
        i32x16 code = field<low_bits>(low, j);
        if constexpr (high_bits > 0) code |= field<high_bits>(high, j) << low_bits;
        w[j] = weight<T>(code, scale);
      }
    }
  }

 private:
  static QUERN_INLINE f32x16 d(const u8* block) {
    if constexpr (format.d_bytes == 1) {
      return scale_to_f32<T>(__builtin_convertvector(load<u8x16>(block), u16x16));
    } else {
      return scale_to_f32<T>(load<u16x16>(block));
    }
  }

  /// Value j of the 8 in a plane of `bits` bits, from its widened rows.
  template <u32 bits>
  static QUERN_INLINE i32x16 field(const i32x16* rows, u32 j) {
    constexpr u32 per_byte = 8 / bits;
    const i32 shift = static_cast<i32>(bits * (j % per_byte));
    return (rows[j / per_byte] >> shift) & static_cast<i32>((1u << bits) - 1);
  }
};

}  // namespace quern::cpu
