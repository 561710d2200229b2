#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// What happens to the sums before they are stored.
enum class Epilogue : u32 {
  store = 0,     ///< y = W x (+ bias)
  residual = 1,  ///< y = residual + W x (+ bias)
  swiglu = 2,    ///< segments {gate, up} of equal rows: y = silu(gate) * up
  gelu_glu = 3,  ///< the same with the tanh form of GELU
};

/// y[token][row] = sum over k of W[row][k] * x[token][k]: one chain of f32 fused multiply-adds over
/// ascending k for every output (DESIGN section 4, rule 3), weights decoded exactly.
/// Buffers: 0 x [tokens][k] f32; 1 y [tokens][out rows] f32; 2 residual (as y; may be y itself;
/// null unless epilogue = residual); then n_segments packed weights; then n_segments bias vectors
/// (f32), null where bit i of `bias` is clear. params[0] = 1 (tests): one more buffer, a u64 that
/// the launch adds the number of decoded weights to (rows padded to 16, times k). On the GPU tiers
/// x is an f16 operand, and a glu epilogue writes y as one; tile_tokens is the token class (8:
/// decode, 64, 256), tile_cells the cells of a block's rows (8; decode: row groups a block).
/// n_segments of a glu is 1 there: gate and up rows are interleaved by 8 in one packed weight of 2
/// * rows, `segments[0].rows` counts both.
struct GemmSpec {
  static constexpr const char* family = "gemm";
  static constexpr u32 max_segments = 4;

  RowSegment segments[max_segments] = {};
  u32 n_segments = 1;
  u32 k = 0;
  Epilogue epilogue = Epilogue::store;
  u32 bias = 0;             ///< Bit i: segment i adds a bias vector.
  float softcap = 0;        ///< c > 0: y = c * tanh(y / c), after everything else.
  u32 tile_tokens = 6;      ///< Tokens of the register tile.
  u32 tile_cells = 4;       ///< 16-row cells of the register tile.
  u32 k_block = 256;        ///< K values decoded to scratch at a time.
  u32 gemv_max_tokens = 2;  ///< Up to this many tokens the weights are decoded in registers.
  Tier tier = Tier::cpu;
  u32 stages =
      0;  ///< GPU tiers: depth of the shared-memory pipeline, in slabs of 64 K (decode: cells).
  u32 shared_groups = 0;  ///< Decode: the last so many of a block's row groups have `sharers` warps
                          ///< each that take turns at the chain, the others one.
  u32 sharers = 0;        ///< Decode: at least 2 where groups are shared, else 0.
  u32 turn_slabs = 0;     ///< Decode: slabs of 64 K of a turn, 4 or 8.

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("segments", s.segments);
    v("n_segments", s.n_segments);
    v("k", s.k);
    v("epilogue", s.epilogue);
    v("bias", s.bias);
    v("softcap", s.softcap);
    v("tile_tokens", s.tile_tokens);
    v("tile_cells", s.tile_cells);
    v("k_block", s.k_block);
    v("gemv_max_tokens", s.gemv_max_tokens);
    v("tier", s.tier);
    v("stages", s.stages);
    v("shared_groups", s.shared_groups);
    v("sharers", s.sharers);
    v("turn_slabs", s.turn_slabs);
  }
};

}  // namespace quern::spec
