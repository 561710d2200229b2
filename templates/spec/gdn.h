#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// Depthwise causal convolution with state, then SiLU (FACTS C 3.2 steps 3 and 4): y = silu(sum
/// over taps oldest first of w[c][tap] * u), raw (pre-SiLU) inputs kept as state. Buffers: 0 u rows
/// (`row_width` floats a token, channels at `offset`); 1 w [channels][kernel] f32 (tap fastest); 2
/// y [tokens][channels]; 3 conv state f32 [kernel - 1][channels], oldest first, in/out.
struct ConvSpec {
  static constexpr const char* family = "conv";

  u32 channels = 0;
  u32 kernel = 0;
  u32 row_width = 0;
  u32 offset = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("channels", s.channels);
    v("kernel", s.kernel);
    v("row_width", s.row_width);
    v("offset", s.offset);
  }
};

/// How a V head finds its K head.
enum class HeadMap : u32 {
  tiled = 0,    ///< k = h mod n_k_heads (qwen35, qwen35moe)
  grouped = 1,  ///< k = h / (n_v_heads / n_k_heads) (qwen3next)
};

/// Gated delta rule, the sequential scan (FACTS B 3.11, C 3.2 steps 5 to 9). x rows are q | k | v
/// after conv and SiLU; L2 norm of q and k per head: x / sqrt(sum x^2 + eps); beta = sigmoid(b),
/// decay = exp(ssm_a * softplus(a + dt_bias)); per token S *= decay; p = S^T k; d = (v - p) * beta;
/// S += k d^T; o = (S^T q) / sqrt(dim). Buffers: 0 x [tokens][2 * n_k_heads * dim + n_v_heads *
/// dim]; 1 ab rows (`ab_row_width` floats a token; a (alpha) of V head h at a_offset + h, b (beta)
/// at b_offset + h); 2 ssm_a [n_v]; 3 dt_bias [n_v]; 4 o [tokens][n_v_heads * dim]; 5 state f32
/// [n_v_heads][dim k][dim v], in/out.
struct DeltaSpec {
  static constexpr const char* family = "delta";

  u32 n_k_heads = 0;
  u32 n_v_heads = 0;
  u32 dim = 0;
  HeadMap head_map = HeadMap::tiled;
  float eps = 0;
  u32 ab_row_width = 0;
  u32 a_offset = 0;
  u32 b_offset = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("n_k_heads", s.n_k_heads);
    v("n_v_heads", s.n_v_heads);
    v("dim", s.dim);
    v("head_map", s.head_map);
    v("eps", s.eps);
    v("ab_row_width", s.ab_row_width);
    v("a_offset", s.a_offset);
    v("b_offset", s.b_offset);
  }
};

}  // namespace quern::spec
