#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// RMSNorm over groups of `group` values: y = x * rsqrt(mean(x^2) + eps) * w, w of `group` values
/// shared by all groups. The mean's tree is fixed by element index. With `gate`: y *= silu(z) after
/// the norm (gated norm of the delta-rule layers). With `residual`: y = residual + the rest.
/// Buffers: 0 x [tokens][width]; 1 w; 2 y [tokens][width]; 3 residual or null; 4 z rows or null
/// (`z_row_width` floats a token, the token's `width` values of z at `z_offset`: z may be a part of
/// a fused GEMM's rows). Both fields are 0 without `gate`.
struct NormSpec {
  static constexpr const char* family = "norm";

  u32 width = 0;
  u32 group = 0;
  float eps = 0;
  u32 residual = 0;
  u32 gate = 0;
  u32 z_row_width = 0;
  u32 z_offset = 0;
  Tier tier = Tier::cpu;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("width", s.width);
    v("group", s.group);
    v("eps", s.eps);
    v("residual", s.residual);
    v("gate", s.gate);
    v("z_row_width", s.z_row_width);
    v("z_offset", s.z_offset);
    v("tier", s.tier);
  }
};

/// Rows by index: y[i] = x[index[i]]. Buffers: 0 x [..][width]; 1 index i32 [rows]; 2 y
/// [rows][width]. n_tokens = rows of y. With `operand` (GPU tiers) x and y are f16 operands.
struct GatherSpec {
  static constexpr const char* family = "gather";

  u32 width = 0;
  u32 operand = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("width", s.width);
    v("operand", s.operand);
  }
};

/// y = a + b * (gate ? sigmoid(dot(g, x)) : 1), token by token: the residual sum, and the shared
/// expert's sum with its sigmoid gate. Buffers: 0 a; 1 b; 2 y, each [tokens][width]; 3 x
/// [tokens][gate_width] or null; 4 g [gate_width] f32 or null.
struct AddSpec {
  static constexpr const char* family = "add";

  u32 width = 0;
  u32 gate_width = 0;  ///< 0: no gate.

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("width", s.width);
    v("gate_width", s.gate_width);
  }
};

}  // namespace quern::spec
