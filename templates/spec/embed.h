#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// y[token] = scale * decode(table[id of token]). Buffers: 0 token ids i32 [tokens]; 1 table, raw
/// rows as the file has them; 2 y [tokens][width] f32.
struct EmbedSpec {
  static constexpr const char* family = "embed";

  QuantType type = QuantType::f32;
  u32 width = 0;
  float scale = 1;
  Tier tier = Tier::cpu;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("type", s.type);
    v("width", s.width);
    v("scale", s.scale);
    v("tier", s.tier);
  }
};

}  // namespace quern::spec
