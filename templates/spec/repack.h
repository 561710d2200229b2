#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// Rearranges rows of a weight as the file has them into the CPU's cells of 16 rows (padded with
/// rows of zero). Output row r comes from source row offset + (r / block_rows) * stride_rows + r %
/// block_rows: a plain matrix has block_rows = stride_rows = rows; interleaved parts of a fused one
/// have not. Buffers: 0 raw source rows; 1 packed. n_tokens = output rows; params = {offset,
/// block_rows, stride_rows}.
struct RepackSpec {
  static constexpr const char* family = "repack";

  QuantType type = QuantType::f32;
  u32 k = 0;
  Tier tier = Tier::cpu;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("type", s.type);
    v("k", s.k);
    v("tier", s.tier);
  }
};

}  // namespace quern::spec
