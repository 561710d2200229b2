#pragma once

// Reading and writing the KV cache (kv_layout.h), one type each for the four element types. `row`
// is a key of V or a (16-key group, dim) pair of K: in both, 16 consecutive elements are one
// vector.

#include "templates/cpu/kv_layout.h"
#include "templates/cpu/math.h"

namespace quern::cpu {

using spec::KvType;

QUERN_INLINE _Float16 to_f16(float x) {
  const float limit = 65504.0f;
  x = x > limit ? limit : x;
  x = x < -limit ? -limit : x;
  return static_cast<_Float16>(x);
}

/// Round to nearest even; NaN stays a (quiet) NaN.
QUERN_INLINE unsigned short to_bf16(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<unsigned short>(x != x ? (bits >> 16) | 0x40u : rounded);
}

/// A plane of elements that stand alone.
template <KvType type>
struct Plane;

template <>
struct Plane<KvType::f32> {
  const float* values;
  static constexpr bool plain = true;

  QUERN_INLINE f32x16 at(u64 element) const { return load_f32(values + element); }
};

template <>
struct Plane<KvType::f16> {
  const _Float16* values;
  static constexpr bool plain = true;

  QUERN_INLINE f32x16 at(u64 element) const { return to_f32(load<f16x16>(values + element)); }
};

template <>
struct Plane<KvType::bf16> {
  const unsigned short* values;
  static constexpr bool plain = true;

  QUERN_INLINE f32x16 at(u64 element) const {
    return from_bits(widen(load<u16x16>(values + element)) << 16);
  }
};

/// q8_0 keeps its scales behind the quants of the plane.
template <>
struct Plane<KvType::q8_0> {
  const signed char* values;
  const _Float16* scales;
  static constexpr bool plain = false;

  QUERN_INLINE f32x16 at(u64 element, f32x16 scale) const {
    return to_f32(widen(load<i8x16>(values + element))) * scale;
  }
};

/// Plane of one KV head in a cache.
template <KvType type>
QUERN_INLINE Plane<type> plane_of(const void* cache, u32 head, u32 dim, u32 capacity) {
  const auto* base = static_cast<const char*>(cache) + head * kv_plane_bytes(type, dim, capacity);
  if constexpr (type == KvType::q8_0) {
    const u64 values = static_cast<u64>(kv_padded_dim(type, dim)) * capacity;
    return {reinterpret_cast<const signed char*>(base),
            reinterpret_cast<const _Float16*>(base + values)};
  } else {
    return {reinterpret_cast<decltype(Plane<type>::values)>(base)};
  }
}

/// Vectors of K: `group` 16 keys, `k` the dim.
template <KvType type>
struct KeyReader {
  Plane<type> plane;
  u32 padded;  ///< kv_padded_dim

  QUERN_INLINE f32x16 at(u32 group, u32 k) const {
    const u64 element = (static_cast<u64>(group) * padded + k) * kv_group_keys;
    if constexpr (Plane<type>::plain) {
      return plane.at(element);
    } else {
      const u64 block = static_cast<u64>(group) * (padded / kv_quant_values) + k / kv_quant_values;
      return plane.at(element, to_f32(load<f16x16>(plane.scales + block * kv_group_keys)));
    }
  }
};

/// Vectors of V: the 16 dims from 16 * c of a key.
template <KvType type>
struct ValueReader {
  Plane<type> plane;
  u32 padded;

  QUERN_INLINE f32x16 at(u32 key, u32 c) const {
    const u64 element = static_cast<u64>(key) * padded + c * lanes;
    if constexpr (Plane<type>::plain) {
      return plane.at(element);
    } else {
      const u64 block =
          static_cast<u64>(key) * (padded / kv_quant_values) + c * lanes / kv_quant_values;
      return plane.at(element, splat(static_cast<float>(plane.scales[block])));
    }
  }
};

/// Writes one position's values; `stride` elements apart (16 in K, 1 in V).
template <class T, class Convert>
QUERN_INLINE void write_plain(T* out, u32 stride, const float* x, u32 dim, Convert convert) {
  for (u32 i = 0; i < dim; ++i) out[static_cast<u64>(i) * stride] = convert(x[i]);
}

inline void write_q8_0(signed char* out, u32 stride, _Float16* scales, u32 scale_stride,
                       const float* x, u32 dim) {
  for (u32 begin = 0; begin < dim; begin += kv_quant_values) {
    const u32 n = min_of(kv_quant_values, dim - begin);
    float largest = 0;
    for (u32 i = 0; i < n; ++i) {
      const float magnitude = __builtin_elementwise_abs(x[begin + i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    const _Float16 scale = to_f16(largest / 127.0f);
    const float d = static_cast<float>(scale);
    for (u32 i = 0; i < kv_quant_values; ++i) {
      float q = d > 0 && i < n ? x[begin + i] / d : 0.0f;
      q = q > 127.0f ? 127.0f : q;
      q = q < -127.0f ? -127.0f : q;
      q = q != q ? 0.0f : __builtin_elementwise_roundeven(q);
      out[static_cast<u64>(begin + i) * stride] = static_cast<signed char>(q);
    }
    scales[begin / kv_quant_values * scale_stride] = scale;
  }
}

/// Where a position lies in a plane of K (16 keys side by side) or V.
enum class CacheKind { key, value };

/// Stores one head's vector of one position.
template <KvType type, CacheKind kind>
inline void write_position(void* cache, u32 head, u32 position, u32 dim, u32 capacity,
                           const float* x) {
  const u32 padded = kv_padded_dim(type, dim);
  const u32 stride = kind == CacheKind::key ? kv_group_keys : 1;
  const u64 element = kind == CacheKind::key
                          ? static_cast<u64>(position / kv_group_keys) * padded * kv_group_keys +
                                position % kv_group_keys
                          : static_cast<u64>(position) * padded;
  char* base = static_cast<char*>(cache) + head * kv_plane_bytes(type, dim, capacity);
  if constexpr (type == KvType::f32) {
    write_plain(reinterpret_cast<float*>(base) + element, stride, x, dim,
                [](float v) { return v; });
  } else if constexpr (type == KvType::f16) {
    write_plain(reinterpret_cast<_Float16*>(base) + element, stride, x, dim, to_f16);
  } else if constexpr (type == KvType::bf16) {
    write_plain(reinterpret_cast<unsigned short*>(base) + element, stride, x, dim, to_bf16);
  } else {
    const u32 blocks = padded / kv_quant_values;
    const u64 scale = kind == CacheKind::key
                          ? static_cast<u64>(position / kv_group_keys) * blocks * kv_group_keys +
                                position % kv_group_keys
                          : static_cast<u64>(position) * blocks;
    auto* scales = reinterpret_cast<_Float16*>(base + static_cast<u64>(padded) * capacity);
    write_q8_0(reinterpret_cast<signed char*>(base) + element, stride, scales + scale, stride, x,
               dim);
  }
}

}  // namespace quern::cpu
