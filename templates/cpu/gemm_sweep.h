#pragma once

// The two inner loops of every projection. Both give each output one chain of fused multiply-adds
// over ascending k, its row's lane of one accumulator, so that bits depend on neither, nor on tile
// sizes.

#include "templates/cpu/cells.h"
#include "templates/cpu/vec.h"

namespace quern::cpu {

/// Where some consecutive cells of a packed matrix lie, and those that this worker reads after
/// them: a step of one token streams its weights from memory, and a whole tile's distance hides
/// that.
struct CellView {
  const u8* data;
  u64 cell_bytes;
  const u8* ahead = nullptr;
};

/// Decodes k values [k0, k0 + k_count) of `n_cells` cells to scratch [k][ld], cell c in columns 16
/// c and following. k0 is a multiple of 32; up to 7 rows more than asked for are written.
template <QuantType T>
void decode_tile(CellView cells, u32 n_cells, u32 k0, u32 k_count, float* scratch, u32 ld) {
  using C = Cell<T>;
  constexpr CellFormat format = C::format;
  for (u32 c = 0; c < n_cells; ++c) {
    const u8* cell = cells.data + c * cells.cell_bytes;
    for (u32 k = k0; k < k0 + k_count; k += format.sub) {
      const u8* block = cell + static_cast<u64>(k / format.values) * format.block_bytes();
      const u32 sub = k % format.values / format.sub;
      const Scale scale = C::scale(block, sub);
      for (u32 o = 0; o < C::octets_of_sub; ++o) {
        f32x16 w[8];
        C::octet(C::octet_at(block, sub * C::octets_of_sub + o), scale, w);
        float* out = scratch + static_cast<u64>(k - k0 + octet_values * o) * ld + cell_rows * c;
#pragma clang loop unroll(full)
        for (u32 j = 0; j < octet_values; ++j) store_f32(out + j * ld, w[j]);
      }
    }
  }
}

/// M tokens by N cells: partial[m][16 n + lane] (rows of ld floats) += sum over k of w[k] *
/// x[m][k], or starts from zero where `first`.
template <u32 M, u32 N>
__attribute__((noinline)) void sweep(const float* w, const float* const* x, u32 k_count,
                                     float* partial, u32 ld, bool first) {
  f32x16 acc[M][N];
#pragma clang loop unroll(full)
  for (u32 m = 0; m < M; ++m) {
#pragma clang loop unroll(full)
    for (u32 n = 0; n < N; ++n)
      acc[m][n] = first ? splat(0.0f) : load_f32(partial + m * ld + lanes * n);
  }
  const float* rows[M];
#pragma clang loop unroll(full)
  for (u32 m = 0; m < M; ++m) rows[m] = x[m];
  for (u64 k = 0; k < k_count; ++k) {
    f32x16 wk[N];
#pragma clang loop unroll(full)
    for (u32 n = 0; n < N; ++n) wk[n] = load_f32(w + k * (lanes * N) + lanes * n);
#pragma clang loop unroll(full)
    for (u32 m = 0; m < M; ++m) {
      const f32x16 xk = splat(rows[m][k]);
#pragma clang loop unroll(full)
      for (u32 n = 0; n < N; ++n) acc[m][n] = fma(wk[n], xk, acc[m][n]);
    }
  }
#pragma clang loop unroll(full)
  for (u32 m = 0; m < M; ++m) {
#pragma clang loop unroll(full)
    for (u32 n = 0; n < N; ++n) store_f32(partial + m * ld + lanes * n, acc[m][n]);
  }
}

/// The same for few tokens, weights decoded in registers and used at once: out[m][16 n + lane]
/// (rows of ld floats) = sum over all k.
template <QuantType T, u32 M, u32 N>
__attribute__((noinline)) void gemv(CellView cells, const float* const* x, u32 k_count, float* out,
                                    u32 ld) {
  using C = Cell<T>;
  constexpr CellFormat format = C::format;
  const long ahead = cells.ahead != nullptr ? cells.ahead - cells.data : 0;
  f32x16 acc[M][N];
#pragma clang loop unroll(full)
  for (u32 m = 0; m < M; ++m) {
#pragma clang loop unroll(full)
    for (u32 n = 0; n < N; ++n) acc[m][n] = splat(0.0f);
  }
  for (u32 k0 = 0; k0 < k_count; k0 += format.values) {
    const u8* block = cells.data + static_cast<u64>(k0 / format.values) * format.block_bytes();
    for (u32 sub = 0; sub < format.sub_blocks(); ++sub) {
      Scale scale[N];
#pragma clang loop unroll(full)
      for (u32 n = 0; n < N; ++n) scale[n] = C::scale(block + n * cells.cell_bytes, sub);
      for (u32 o = 0; o < C::octets_of_sub; ++o) {
        const u32 octet = sub * C::octets_of_sub + o;
        const u32 k = k0 + octet * octet_values;
        f32x16 w[N][8];
#pragma clang loop unroll(full)
        for (u32 n = 0; n < N; ++n) {
          const u8* p = C::octet_at(block + n * cells.cell_bytes, octet);
#pragma clang loop unroll(full)
          for (u32 line = 0; line < format.octet_bytes(); line += 64) {
            __builtin_prefetch(p + ahead + line);
          }
          C::octet(p, scale[n], w[n]);
        }
        const u32 count =
            format.is_float() && k_count - k < octet_values ? k_count - k : octet_values;
#pragma clang loop unroll(full)
        for (u32 j = 0; j < octet_values; ++j) {
          if (j >= count) break;
#pragma clang loop unroll(full)
          for (u32 m = 0; m < M; ++m) {
            const f32x16 xk = splat(x[m][k + j]);
#pragma clang loop unroll(full)
            for (u32 n = 0; n < N; ++n) acc[m][n] = fma(w[n][j], xk, acc[m][n]);
          }
        }
      }
    }
  }
#pragma clang loop unroll(full)
  for (u32 m = 0; m < M; ++m) {
#pragma clang loop unroll(full)
    for (u32 n = 0; n < N; ++n) store_f32(out + m * ld + lanes * n, acc[m][n]);
  }
}

}  // namespace quern::cpu
