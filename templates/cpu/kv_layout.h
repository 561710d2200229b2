#pragma once

// The CPU's KV cache. A plane holds one KV head; a cache is n_head_kv planes of `capacity`
// positions.
//   K: [position / 16][dim][16 positions], so that the lanes of a score vector are keys.
//   V: [position][dim], so that the lanes of an output vector are dims.
// `dim` is padded (kv_padded_dim); what lies in the padding is never read into a result.
// f32, f16, bf16: elements of that type; f16 saturates at the largest finite value.
// q8_0: 32 values along dim share a scale: d = f16(max |x| / 127), q = x / d rounded to nearest
// even, value q * d in f32. A plane is its quants (int8, in the order above), then its scales: K
// [position / 16][dim / 32][16 positions], V [position][dim / 32].

#include "templates/spec/types.h"

namespace quern::cpu {

inline constexpr unsigned kv_group_keys = 16;     ///< Keys side by side in K.
inline constexpr unsigned kv_quant_values = 32;   ///< Values that share a q8_0 scale.
inline constexpr unsigned kv_capacity_step = 64;  ///< Capacities are multiples of it.

constexpr unsigned kv_padded_dim(spec::KvType type, unsigned dim) {
  const unsigned step = type == spec::KvType::q8_0 ? kv_quant_values : 16;
  return (dim + step - 1) / step * step;
}

/// Bytes of one KV head's plane.
constexpr unsigned long kv_plane_bytes(spec::KvType type, unsigned dim, unsigned capacity) {
  const unsigned long values = static_cast<unsigned long>(kv_padded_dim(type, dim)) * capacity;
  if (type == spec::KvType::f32) return values * 4;
  if (type == spec::KvType::q8_0) return values + values / kv_quant_values * 2;
  return values * 2;
}

/// Bytes of a layer's K (or V) cache. `capacity` is a multiple of 64.
constexpr unsigned long kv_bytes(spec::KvType type, unsigned n_head_kv, unsigned dim,
                                 unsigned capacity) {
  return kv_plane_bytes(type, dim, capacity) * n_head_kv;
}

}  // namespace quern::cpu
