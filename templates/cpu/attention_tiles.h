#pragma once

// The register tiles of attention: `rows` chains of fused multiply-adds for each of `columns`
// vectors. Which tile computes an element changes no bits: an element is one chain in ascending
// order.

#include "templates/cpu/math.h"

/// Vector registers of the target, set by the compiler: 32 hold 16 lanes each, 16 hold 8.
extern "C" const quern::spec::u32 quern_vector_registers;

namespace quern::cpu {

/// Rows of an operand or a result, `stride` floats apart.
struct Strided {
  float* data;
  u32 stride;
  QUERN_INLINE Strided at(u32 row, u32 column) const {
    return {data + static_cast<u64>(row) * stride + column, stride};
  }
};

/// The right operand: vector c of step k lies at data + k * step + c * column.
struct Vectors {
  const float* data;
  u32 step, column;
  QUERN_INLINE Vectors at(u32 k, u32 c) const {
    return {data + static_cast<u64>(k) * step + static_cast<u64>(c) * column, step, column};
  }
};

/// The two products. Each gets tiles of its own, so that LLVM knows their strides.
enum class Product {
  scores,  ///< q K: steps are dims, columns groups of 16 keys; starts from zero.
  output,  ///< p V: steps are keys, columns 16 dims; continues from what is there.
};

/// out[r][16 c + lane] (+)= sum over k ascending of a[r][k] * b(k, c)[lane].
template <Product product, u32 rows, u32 columns>
[[gnu::noinline]] void chain_tile(Strided a, Vectors b, u32 n, Strided out) {
  f32x16 acc[rows][columns];
#pragma clang loop unroll(full)
  for (u32 r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
    for (u32 c = 0; c < columns; ++c) {
      acc[r][c] = product == Product::output ? load_f32(out.at(r, c * lanes).data) : splat(0.0f);
    }
  }
#pragma clang loop unroll(disable)
  for (u32 k = 0; k < n; ++k) {
    f32x16 column[columns];
#pragma clang loop unroll(full)
    for (u32 c = 0; c < columns; ++c) column[c] = load_f32(b.at(k, c).data);
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

/// Rows of the tallest tile. Of 32 registers, 6 x 4 accumulators, 4 columns and a broadcast take
/// 29; of 16, 6 x 1 of two registers each, one column and a broadcast take 15.
inline constexpr u32 chain_rows = 6;

template <Product product, u32 rows, u32 width>
QUERN_INLINE void chain_columns(Strided a, Vectors b, u32 n, u32 columns, Strided out) {
  u32 c = 0;
  for (; c + width <= columns; c += width) {
    chain_tile<product, rows, width>(a, b.at(0, c), n, out.at(0, c * lanes));
  }
  for (; c < columns; ++c) {
    chain_tile<product, rows, 1>(a, b.at(0, c), n, out.at(0, c * lanes));
  }
}

/// Few rows take more columns, to hide the latency of their chains.
template <Product product, u32 rows>
QUERN_INLINE void chain_row_group(Strided a, Vectors b, u32 n, u32 columns, Strided out) {
  if (quern_vector_registers == 32) {
    chain_columns<product, rows, rows <= 2 ? 8 : 4>(a, b, n, columns, out);
  } else {
    chain_columns<product, rows, rows == 1 ? 4 : rows == 2 ? 2 : 1>(a, b, n, columns, out);
  }
}

/// The same for 1 to chain_rows rows and any number of columns.
template <Product product>
[[gnu::noinline]] void chains(u32 rows, Strided a, Vectors b, u32 n, u32 columns, Strided out) {
  switch (rows) {
    case 1:
      chain_row_group<product, 1>(a, b, n, columns, out);
      break;
    case 2:
      chain_row_group<product, 2>(a, b, n, columns, out);
      break;
    case 3:
      chain_row_group<product, 3>(a, b, n, columns, out);
      break;
    case 4:
      chain_row_group<product, 4>(a, b, n, columns, out);
      break;
    case 5:
      chain_row_group<product, 5>(a, b, n, columns, out);
      break;
    default:
      chain_row_group<product, 6>(a, b, n, columns, out);
      break;
  }
}

}  // namespace quern::cpu
