#pragma once

#include "templates/spec/gemm.h"
#include "templates/spec/gemm_launch.h"

// A GEMM through cuBLASLt (fast mode; docs/gpu.md, "The cuBLASLt route"): the parts that take a
// GemmSpec's place in launches of many rows. All are for GPUs alone.

namespace quern::spec {

/// Halves of a row of plain f16 rows: whole slabs of 64, as operands have them, so that every row
/// begins on 128 bytes; what lies beyond the width is zero.
constexpr u32 plain_row_halves(u32 width) {
  return (width + 63) / 64 * 64;
}

/// Weight cells of all segments to plain f16 rows, [rows of all segments][plain_row_halves(k)],
/// each weight the same half as in the fused GEMM. A gated unit's rows stay interleaved by 8.
/// Buffers: 0 rows; then n_segments packed weights.
struct UnpackSpec {
  static constexpr const char* family = "unpack";
  static constexpr bool gpu_only = true;

  RowSegment segments[GemmSpec::max_segments] = {};
  u32 n_segments = 1;
  u32 k = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("segments", s.segments);
    v("n_segments", s.n_segments);
    v("k", s.k);
  }
};

/// An f16 operand to plain f16 rows, [row][plain_row_halves(width)]. Buffers: 0 operand; 1 rows.
struct FlattenSpec {
  static constexpr const char* family = "flatten";
  static constexpr bool gpu_only = true;

  u32 width = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("width", s.width);
  }
};

/// y[token][row] = (residual +) sum over k of w[row][k] * x[token][k], by cuBLASLt: no kernel of
/// Quern's is compiled for it. The sums are f32, in an order that is the library's. Buffers: 0 x,
/// plain f16 rows of k halves; 1 y [tokens][rows] f32; 2 residual (as y; may be y itself) or null;
/// 3 w, plain f16 rows of k halves.
struct MatmulSpec {
  static constexpr const char* family = "matmul";
  static constexpr bool gpu_only = true;

  u32 rows = 0;
  u32 k = 0;  ///< Halves of a plain row.
  u32 residual = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("rows", s.rows);
    v("k", s.k);
    v("residual", s.residual);
  }
};

/// What a GemmSpec's epilogue does to its sums, from f32 sums [token][rows of all segments]: scale,
/// bias, residual, soft-cap, or a gated unit's product as an f16 operand. Buffers: the GemmSpec's,
/// with the sums in the place of x and no weights (n_segments times null).
struct FinishSpec {
  static constexpr const char* family = "finish";
  static constexpr bool gpu_only = true;

  u32 rows[GemmSpec::max_segments] = {};
  u32 n_segments = 1;
  Epilogue epilogue = Epilogue::store;
  u32 bias = 0;
  float softcap = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("rows", s.rows);
    v("n_segments", s.n_segments);
    v("epilogue", s.epilogue);
    v("bias", s.bias);
    v("softcap", s.softcap);
  }
};

constexpr u32 all_rows(const FinishSpec& s) {
  u32 rows = 0;
  for (u32 i = 0; i < s.n_segments; ++i) rows += s.rows[i];
  return rows;
}

/// Blocks of eight cells of one segment.
constexpr u32 unpack_blocks(const RowSegment& segment, u32 k) {
  return gpu_row_tiles(segment.rows) *
         ((k + gpu_cell_k(segment.type) - 1) / gpu_cell_k(segment.type));
}
constexpr LaunchShape launch_shape(const UnpackSpec& s) {
  u32 blocks = 0;
  for (u32 i = 0; i < s.n_segments; ++i) blocks += unpack_blocks(s.segments[i], s.k);
  return {.threads = 256, .grid_x = blocks};
}
constexpr LaunchShape launch_shape(const FlattenSpec&, u32 rows) {
  return {.threads = 256, .grid_x = rows};
}
/// Columns of a block: four a thread.
inline constexpr u32 finish_columns = 1024;
constexpr LaunchShape launch_shape(const FinishSpec& s, u32 rows) {
  const bool glu = s.epilogue == Epilogue::swiglu || s.epilogue == Epilogue::gelu_glu;
  const u32 columns = glu ? plain_row_halves(s.rows[0] / 2) : all_rows(s);
  return {
      .threads = 256, .grid_x = rows, .grid_y = (columns + finish_columns - 1) / finish_columns};
}

}  // namespace quern::spec
