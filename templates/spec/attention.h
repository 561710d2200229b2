#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

enum class AttentionPath : u32 { flash = 0, wave = 1 };

/// Causal attention over the cache (which already holds this chunk). Keys are cut into blocks of
/// `block_keys` and segments of `segment_keys` absolute positions; inside a segment online softmax,
/// blocks ascending; segments merge by a left fold (DESIGN section 4, rule 5). Query i sees key j
/// iff j <= i and (window == 0 or i - j < window). Scores: scale * q.k, softcap c > 0: c * tanh(s /
/// c). Buffers: 0 q rows (`q_row_width` floats a token, heads at q_offset); 1 K cache; 2 V cache;
/// 3 out [tokens][n_head * value_dim]; 4 gate rows or null: with `gate`, out *= sigmoid(gate), gate
/// row width and offset as given. On the GPU tiers q is f16 [token][n_head * head_dim] and out an
/// f16 operand; templates/cuda/attention names the other buffers.
struct AttentionSpec {
  static constexpr const char* family = "attention";

  u32 n_head = 0;
  u32 n_head_kv = 0;
  u32 head_dim = 0;
  u32 value_dim = 0;
  u32 q_row_width = 0;
  u32 q_offset = 0;
  float scale = 1;
  float softcap = 0;
  u32 window = 0;
  u32 gate = 0;
  u32 gate_row_width = 0;
  u32 gate_offset = 0;
  AttentionPath path = AttentionPath::flash;
  KvType kv = KvType::f32;
  u32 block_keys = 64;
  u32 segment_keys = 1024;
  Tier tier = Tier::cpu;
  u32 decode = 0;  ///< GPU tiers: the kernel of one token, its segments in parallel; same bits.
  u32 warps = 0;   ///< GPU tiers, flash prefill: warps a block, 16 queries each; 0: as many as
                   ///< registers allow.

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("n_head", s.n_head);
    v("n_head_kv", s.n_head_kv);
    v("head_dim", s.head_dim);
    v("value_dim", s.value_dim);
    v("q_row_width", s.q_row_width);
    v("q_offset", s.q_offset);
    v("scale", s.scale);
    v("softcap", s.softcap);
    v("window", s.window);
    v("gate", s.gate);
    v("gate_row_width", s.gate_row_width);
    v("gate_offset", s.gate_offset);
    v("path", s.path);
    v("kv", s.kv);
    v("block_keys", s.block_keys);
    v("segment_keys", s.segment_keys);
    v("tier", s.tier);
    v("decode", s.decode);
    v("warps", s.warps);
  }
};

}  // namespace quern::spec
