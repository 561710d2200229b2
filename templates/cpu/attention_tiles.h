#pragma once

// The register tiles of attention: `rows` chains of fused multiply-adds for each of `columns`
// vectors. Which tile computes an element changes no bits: an element is one chain in ascending
// order.

#include "templates/cpu/kv_cache.h"

namespace quern::cpu {

/// B of the scores: k is the dim, column c the c-th group of 16 keys.
template <KvType type>
struct KeyOperand {
  KeyReader<type> reader;
  u32 group;
  QUERN_INLINE f32x16 at(u32 k, u32 c) const { return reader.at(group + c, k); }
  QUERN_INLINE KeyOperand from_column(u32 c) const { return {reader, group + c}; }
};

/// B of the output: k is the key, column c the c-th 16 dims.
template <KvType type>
struct ValueOperand {
  ValueReader<type> reader;
  u32 key, column;
  QUERN_INLINE f32x16 at(u32 k, u32 c) const { return reader.at(key + k, column + c); }
  QUERN_INLINE ValueOperand from_column(u32 c) const { return {reader, key, column + c}; }
};

/// Rows of the left operand and of the result, `stride` floats apart.
struct Strided {
  float* data;
  u32 stride;
  QUERN_INLINE Strided at(u32 row, u32 column) const {
    return {data + static_cast<u64>(row) * stride + column, stride};
  }
};

/// out[r][16 c + lane] (resume: +)= sum over k ascending of a[r][k] * b(k, c)[lane].
template <u32 rows, u32 columns, bool resume, class B>
[[gnu::noinline]] void chain_tile(Strided a, const B& operand, u32 n, Strided out) {
  const B b = operand;
  f32x16 acc[rows][columns];
#pragma clang loop unroll(full)
  for (u32 r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
    for (u32 c = 0; c < columns; ++c) {
      acc[r][c] = resume ? load_f32(out.at(r, c * lanes).data) : splat(0.0f);
    }
  }
  for (u32 k = 0; k < n; ++k) {
    f32x16 column[columns];
#pragma clang loop unroll(full)
    for (u32 c = 0; c < columns; ++c) column[c] = b.at(k, c);
#pragma clang loop unroll(full)
    for (u32 r = 0; r < rows; ++r) {
      const f32x16 x = splat(a.at(r, k).data[0]);
#pragma clang loop unroll(full)
      for (u32 c = 0; c < columns; ++c) acc[r][c] = fma(x, column[c], acc[r][c]);
    }
  }
#pragma clang loop unroll(full)
  for (u32 r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
    for (u32 c = 0; c < columns; ++c) store_f32(out.at(r, c * lanes).data, acc[r][c]);
  }
}

/// Rows of the widest tile: 6 x 4 accumulators, 4 columns and a broadcast fit 32 registers.
inline constexpr u32 chain_rows = 6;

template <u32 rows, bool resume, class B>
QUERN_INLINE void chain_columns(Strided a, const B& b, u32 n, u32 columns, Strided out) {
  u32 c = 0;
  if constexpr (rows <= 2) {  // Few rows need more columns to hide the latency of a chain.
    for (; c + 8 <= columns; c += 8) {
      chain_tile<rows, 8, resume>(a, b.from_column(c), n, out.at(0, c * lanes));
    }
  }
  for (; c + 4 <= columns; c += 4) {
    chain_tile<rows, 4, resume>(a, b.from_column(c), n, out.at(0, c * lanes));
  }
  for (; c + 2 <= columns; c += 2) {
    chain_tile<rows, 2, resume>(a, b.from_column(c), n, out.at(0, c * lanes));
  }
  if (c < columns) chain_tile<rows, 1, resume>(a, b.from_column(c), n, out.at(0, c * lanes));
}

/// The same for 1 to chain_rows rows and any number of columns.
template <bool resume, class B>
inline void chains(u32 rows, Strided a, const B& b, u32 n, u32 columns, Strided out) {
  switch (rows) {
    case 1:
      chain_columns<1, resume>(a, b, n, columns, out);
      break;
    case 2:
      chain_columns<2, resume>(a, b, n, columns, out);
      break;
    case 3:
      chain_columns<3, resume>(a, b, n, columns, out);
      break;
    case 4:
      chain_columns<4, resume>(a, b, n, columns, out);
      break;
    case 5:
      chain_columns<5, resume>(a, b, n, columns, out);
      break;
    default:
      chain_columns<6, resume>(a, b, n, columns, out);
      break;
  }
}

}  // namespace quern::cpu
