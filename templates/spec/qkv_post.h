#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

enum class QkNorm : u32 { none = 0, per_head = 1, full_width = 2 };
enum class RopePairing : u32 { none = 0, norm = 1, neox = 2 };

/// After the fused QKV GEMM: QK-norm, then RoPE on the first n_rot dims of each head of q and k,
/// then q back in place and k, v appended to the cache. cos and sin come from the runtime's table
/// for this chunk's positions (computed in double, the frequency scaling and mscale already in
/// them). Row layout of the input: `row_width` floats, q at q_offset, k at k_offset, v at v_offset.
/// Buffers: 0 qkv [tokens][row_width] f32 in/out; 1 rope table [tokens][n_rot/2][2] (cos, sin) f32
/// or null; 2 q norm weight or null; 3 k norm weight or null; 4 K cache; 5 V cache. CPU cache
/// layout: see templates/cpu/kv_layout.h.
struct QkvPostSpec {
  static constexpr const char* family = "qkv_post";

  u32 n_head = 0;
  u32 n_head_kv = 0;
  u32 head_dim = 0;   ///< Of q and k.
  u32 value_dim = 0;  ///< Of v.
  u32 row_width = 0;
  u32 q_offset = 0;
  u32 k_offset = 0;
  u32 v_offset = 0;
  QkNorm qk_norm = QkNorm::none;
  float eps = 0;
  RopePairing rope = RopePairing::none;
  u32 n_rot = 0;
  KvType kv = KvType::f32;
  Tier tier = Tier::cpu;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("n_head", s.n_head);
    v("n_head_kv", s.n_head_kv);
    v("head_dim", s.head_dim);
    v("value_dim", s.value_dim);
    v("row_width", s.row_width);
    v("q_offset", s.q_offset);
    v("k_offset", s.k_offset);
    v("v_offset", s.v_offset);
    v("qk_norm", s.qk_norm);
    v("eps", s.eps);
    v("rope", s.rope);
    v("n_rot", s.n_rot);
    v("kv", s.kv);
    v("tier", s.tier);
  }
};

}  // namespace quern::spec
