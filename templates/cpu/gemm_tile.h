#pragma once

// One tile of output rows for all tokens of a launch: decoding, inner loops, epilogue. Shared by
// the families gemm and experts, whose specs name these fields alike.

#include "templates/cpu/decode_types.h"
#include "templates/cpu/gemm_sweep.h"
#include "templates/cpu/vec.h"
#include "templates/spec/gemm.h"

namespace quern::cpu {

using spec::Epilogue;

/// Where a tile reads and writes. `Rows` gives the addresses of a token's rows: x(t), y(t),
/// residual(t).
template <class Rows>
struct TileArgs {
  Rows rows;
  u32 n_tokens;
  CellView cells[2];     ///< The tile's cells of its segment; with a glu of gate and of up.
  const float* bias[2];  ///< From the tile's first row; null where there is none.
  u32 y_offset;          ///< Of the tile's first row in a row of y.
  u32 n_rows;            ///< Rows that exist, at most 16 a cell.
  float* scratch;        ///< Decoded weights, then partial sums.
  u64* decoded;          ///< Null, or the tests\' count of weights decoded.
};

/// `spec` is the kernel's spec, `segment` the (gate) segment of the tile.
template <const auto& spec, u32 segment, class Rows>
struct Tile {
  using Args = TileArgs<Rows>;
  static constexpr u32 up =
      segment + 1 < sizeof(spec.segments) / sizeof(spec.segments[0]) ? segment + 1 : 0;

  static QUERN_INLINE bool is_glu() {
    return spec.epilogue == Epilogue::swiglu || spec.epilogue == Epilogue::gelu_glu;
  }

  /// Counts weights of `n_cells` cells as decoded.
  static QUERN_INLINE void count(const Args& args, u32 n_cells, u32 k_count) {
    if (args.decoded == nullptr) return;
    __atomic_fetch_add(args.decoded, static_cast<u64>(n_cells) * cell_rows * k_count,
                       __ATOMIC_RELAXED);
  }

  /// Sums of cell `c` of the tile for one token, bias added.
  static QUERN_INLINE f32x16 biased(const float* sums, const float* bias, u32 c, u32 n) {
    f32x16 v = load_f32(sums + lanes * c);
    if (bias != nullptr)
      v += n == lanes ? load_f32(bias + lanes * c) : load_f32(bias + lanes * c, n);
    return v;
  }

  /// Finishes and stores one token's row of the tile; `n_cells` output cells.
  static void finish(const Args& args, u32 token, const float* sums, u32 n_cells) {
    float* y = args.rows.y(token) + args.y_offset;
    for (u32 c = 0; c < n_cells; ++c) {
      const u32 left = args.n_rows - lanes * c;
      const u32 n = left < lanes ? left : lanes;
      f32x16 v = biased(sums, args.bias[0], c, n);
      if (is_glu()) {
        const f32x16 u = biased(sums + lanes * n_cells, args.bias[1], c, n);
        v = (spec.epilogue == Epilogue::swiglu ? silu(v) : gelu_tanh(v)) * u;
      }
      if (spec.epilogue == Epilogue::residual) {
        const float* residual = args.rows.residual(token) + args.y_offset + lanes * c;
        v = (n == lanes ? load_f32(residual) : load_f32(residual, n)) + v;
      }
      if constexpr (requires { spec.softcap; }) {
        if (spec.softcap > 0) v = splat(spec.softcap) * tanh(v / splat(spec.softcap));
      }
      if (n == lanes) {
        store_f32(y + lanes * c, v);
      } else {
        store_f32(y + lanes * c, v, n);
      }
    }
  }

  /// M tokens from `token` on against the decoded block; stores their outputs after the last block.
  template <u32 M, u32 N>
  static QUERN_INLINE void group(const Args& args, u32 token, u32 k0, u32 k_count, float* partial) {
    const float* x[M];
#pragma clang loop unroll(full)
    for (u32 m = 0; m < M; ++m) x[m] = args.rows.x(token + m) + k0;
    float* sums = partial + static_cast<u64>(token) * (lanes * N);
    sweep<M, N>(args.scratch, x, k_count, sums, lanes * N, k0 == 0);
    if (k0 + k_count == spec.k) {
      for (u32 m = 0; m < M; ++m)
        finish(args, token + m, sums + m * (lanes * N), is_glu() ? N / 2 : N);
    }
  }

  /// Many tokens: N register cells (with a glu N / 2 of gate and N / 2 of up).
  template <u32 N>
  static void blocked(const Args& args) {
    const u32 halves = is_glu() ? N / 2 : N;
    float* partial = args.scratch + static_cast<u64>(spec.k_block) * (lanes * N);
    for (u32 k0 = 0; k0 < spec.k; k0 += spec.k_block) {
      const u32 k_count = spec.k - k0 < spec.k_block ? spec.k - k0 : spec.k_block;
      with_type(spec.segments[segment].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
        decode_tile<T>(args.cells[0], halves, k0, k_count, args.scratch, lanes * N);
      });
      if (is_glu()) {
        with_type(spec.segments[up].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
          decode_tile<T>(args.cells[1], halves, k0, k_count, args.scratch + lanes * halves,
                         lanes * N);
        });
      }
      count(args, N, k_count);
      u32 token = 0;
      const auto pass = [&]<u32 M>() QUERN_INLINE_LAMBDA {
        for (; token + M <= args.n_tokens; token += M)
          group<M, N>(args, token, k0, k_count, partial);
      };
      if (spec.tile_tokens == 12) pass.template operator()<12>();
      if (spec.tile_tokens == 8) pass.template operator()<8>();
      if (spec.tile_tokens == 6) pass.template operator()<6>();
      if (spec.tile_tokens == 4) pass.template operator()<4>();
      if (spec.tile_tokens == 3) pass.template operator()<3>();
      pass.template operator()<2>();
      pass.template operator()<1>();
    }
  }

  /// M tokens from `token` on, N output cells, weights decoded in registers.
  template <u32 M, u32 N>
  static QUERN_INLINE void few_tokens(const Args& args, u32 token) {
    const float* x[M];
#pragma clang loop unroll(full)
    for (u32 m = 0; m < M; ++m) x[m] = args.rows.x(token + m);
    alignas(64) float sums[M][2 * lanes * N];
    with_type(spec.segments[segment].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
      gemv<T, M, N>(args.cells[0], x, spec.k, sums[0], 2 * lanes * N);
    });
    if (is_glu()) {
      with_type(spec.segments[up].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
        gemv<T, M, N>(args.cells[1], x, spec.k, sums[0] + lanes * N, 2 * lanes * N);
      });
    }
    count(args, is_glu() ? 2 * N : N, spec.k);
    for (u32 m = 0; m < M; ++m) finish(args, token + m, sums[m], N);
  }

  template <u32 N>
  static void decode_in_registers(const Args& args) {
    u32 token = 0;
    if (spec.gemv_max_tokens > 1) {
      for (; token + 2 <= args.n_tokens; token += 2) few_tokens<2, N>(args, token);
    }
    for (; token < args.n_tokens; ++token) few_tokens<1, N>(args, token);
  }

  /// Cells that one tile takes at most.
  static QUERN_INLINE u32 most_cells(u32 n_tokens) {
    if (n_tokens <= spec.gemv_max_tokens) return spec.tile_cells < 4 ? 2 : 4;
    return is_glu() ? spec.tile_cells / 2 : spec.tile_cells;
  }

  /// The tile of `n_cells` output cells (1, 2 or 4).
  static QUERN_INLINE void run(const Args& args, u32 n_cells) {
    if (args.n_tokens <= spec.gemv_max_tokens) {
      if (n_cells == 4) return decode_in_registers<4>(args);
      if (n_cells == 2) return decode_in_registers<2>(args);
      return decode_in_registers<1>(args);
    }
    const u32 columns = is_glu() ? 2 * n_cells : n_cells;
    if (columns == 4) return blocked<4>(args);
    if (columns == 2) return blocked<2>(args);
    if (!is_glu()) blocked<1>(args);
  }
};

/// Largest of 4, 2 and 1 that is not above n (n > 0).
QUERN_INLINE u32 power_below(u32 n) {
  return n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

}  // namespace quern::cpu
