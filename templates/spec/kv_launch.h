#pragma once

#include "templates/spec/types.h"

// Sizes of the GPU's KV cache: used by the kernels, the planner and the executor.

namespace quern::spec {

/// Bytes of one position of one KV head: `dim` values of the cache's type (q8_0: blocks of 32, each
/// 32 int8 and one f16 scale). The GPU's cache is [kv head][position][dim].
constexpr u32 kv_row_bytes(KvType type, u32 dim) {
  return type == KvType::f32 ? dim * 4 : type == KvType::q8_0 ? (dim + 31) / 32 * 34 : dim * 2;
}

}  // namespace quern::spec
