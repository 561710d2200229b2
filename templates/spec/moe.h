#pragma once

#include "templates/spec/gemm.h"
#include "templates/spec/types.h"

namespace quern::spec {

/// Routing (FACTS B 3.8): logits = W x in f32 (one chain over k); p = softmax over all experts; the
/// n_used largest, ties to the lower index, in descending order; renormalise: w /= max(sum
/// w, 6.103515625e-5); then w *= weights_scale. Afterwards the launch groups the chunk's (token,
/// slot) pairs by expert: a counting sort that keeps token order. Buffers: 0 x [tokens][k] f32; 1
/// packed router matrix (type `type`, n_expert rows); 2 expert ids i32 [tokens][n_used]; 3 weights
/// f32 [tokens][n_used]; 4 logits f32 [tokens][n_expert] (scratch, read by tests).
struct RouterSpec {
  static constexpr const char* family = "router";

  QuantType type = QuantType::f32;
  u32 k = 0;
  u32 n_expert = 0;
  u32 n_used = 0;
  u32 renormalise = 0;
  float weights_scale = 1;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("type", s.type);
    v("k", s.k);
    v("n_expert", s.n_expert);
    v("n_used", s.n_used);
    v("renormalise", s.renormalise);
    v("weights_scale", s.weights_scale);
  }
};

/// Groups pairs by expert. Buffers: 0 ids i32 [tokens][n_used]; 1 offsets i32 [n_expert + 1]; 2
/// pairs i32 [tokens * n_used], pair = token * n_used + slot, grouped by expert, ascending inside
/// each.
struct GroupSpec {
  static constexpr const char* family = "group";

  u32 n_expert = 0;
  u32 n_used = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("n_expert", s.n_expert);
    v("n_used", s.n_used);
  }
};

/// Grouped GEMM over the pairs of each used expert; each used expert's weights are decoded once per
/// launch. `in_per_pair` = 0: input row of a pair is its token's; 1: the pair's own row.
/// y rows are pairs (token * n_used + slot), so that order does not depend on grouping.
/// Buffers: 0 x; 1 y [tokens * n_used][out rows] f32; 2 offsets; 3 pairs (as GroupSpec); then
/// n_segments packed 3-D weights (expert-major, each expert's matrix packed alike). params[0] = 1
/// (tests): one more buffer, a u64 that the launch adds the number of decoded weights to (rows
/// padded to 16, times k).
struct ExpertsSpec {
  static constexpr const char* family = "experts";

  RowSegment segments[2] = {};  ///< {gate, up} with a glu epilogue, or {down}.
  u32 n_segments = 1;
  u32 k = 0;
  Epilogue epilogue = Epilogue::store;
  u32 n_expert = 0;
  u32 n_used = 0;
  u32 in_per_pair = 0;
  u32 tile_tokens = 6;
  u32 tile_cells = 4;
  u32 k_block = 256;
  u32 gemv_max_tokens = 2;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("segments", s.segments);
    v("n_segments", s.n_segments);
    v("k", s.k);
    v("epilogue", s.epilogue);
    v("n_expert", s.n_expert);
    v("n_used", s.n_used);
    v("in_per_pair", s.in_per_pair);
    v("tile_tokens", s.tile_tokens);
    v("tile_cells", s.tile_cells);
    v("k_block", s.k_block);
    v("gemv_max_tokens", s.gemv_max_tokens);
  }
};

/// y[token] = (residual ? residual[token] : 0) + sum over slots in slot order of w[slot] *
/// e[token][slot]. Buffers: 0 e [tokens][n_used][width]; 1 weights [tokens][n_used]; 2 y
/// [tokens][width]; 3 residual or null.
struct CombineSpec {
  static constexpr const char* family = "combine";

  u32 width = 0;
  u32 n_used = 0;
  u32 residual = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("width", s.width);
    v("n_used", s.n_used);
    v("residual", s.residual);
  }
};

}  // namespace quern::spec
