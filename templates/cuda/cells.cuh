#pragma once

#include "templates/cuda/ptx/convert.cuh"
#include "templates/spec/types.h"

// Weight cells of 16 rows and their decoders (docs/gpu.md, "Layouts"). A lane reads its codes of a 64-K plane (`Codes`); a decoder
// turns half of them into the A fragments of two k16 steps, four registers each, of rows g = lane / 4 and g + 8. Every weight is
// rn_f16(2^s_w * fma_f32(d * sc, q, -dmin * m)) and the like: one rounding.

namespace quern::cuda {

using spec::QuantType;
using spec::u32;

template <QuantType type>
struct Cell;  // k, header_bytes, plane_bytes; Scales; Codes, codes; decode<widened>

using Fragments = u32[4][4];      ///< Of a plane ...
using HalfFragments = u32[2][4];  ///< ... and of half of one.

/// Bytes of a cell.
template <QuantType type>
__host__ __device__ constexpr u32 cell_bytes() {
  return Cell<type>::header_bytes + Cell<type>::k / 64 * Cell<type>::plane_bytes;
}

/// The fragments of a whole plane. `widened`: the scales are (detail::KScales).
template <QuantType type, bool widened>
__device__ __forceinline__ void decode_plane(const unsigned char* cell, const typename Cell<type>::Scales& scales, u32 plane,
                                             u32 lane, float weight_scale, Fragments& a) {
  const typename Cell<type>::Codes codes = Cell<type>::codes(cell, plane, lane);
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    HalfFragments part;
    Cell<type>::template decode<widened>(cell, codes, scales, plane, half, lane, weight_scale, part);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) a[half * 2][i] = part[0][i], a[half * 2 + 1][i] = part[1][i];
  }
}

namespace detail {

__device__ __forceinline__ float byte_as_float(u32 bytes, u32 high, u32 selector) {
  return __uint_as_float(__byte_perm(bytes, high, selector));
}

/// Fragments of one k16 step from 4-byte groups of codes: `even` holds the codes of nibbles 0 2 4 6 (row g: k 2t, 2t+8 in its
/// low half, 2t+1, 2t+9 in its high half), `odd` those of row g + 8. `value(bytes, i)` decodes code i of a group.
template <class Low, class High>
__device__ __forceinline__ void fragments_of(u32 even, u32 odd, Low low, High high, u32 (&a)[4]) {
  a[0] = ptx::cvt_rn_f16x2_f32(low(even, 0), low(even, 2));
  a[1] = ptx::cvt_rn_f16x2_f32(high(odd, 0), high(odd, 2));
  a[2] = ptx::cvt_rn_f16x2_f32(low(even, 1), low(even, 3));
  a[3] = ptx::cvt_rn_f16x2_f32(high(odd, 1), high(odd, 3));
}

/// Code i of a group whose bytes have bit 7 set: 1 + (byte & 127) / 128, exactly.
__device__ __forceinline__ float one_plus_128th(u32 bytes, int i) {
  return byte_as_float(bytes, 0x3f000000u, 0x7044u + (static_cast<u32>(i) << 8));
}
/// Code i of a group: the byte, exactly (2^23 + byte, less 2^23).
__device__ __forceinline__ float whole_byte(u32 bytes, int i) {
  return byte_as_float(bytes, 0x4b000000u, 0x7650u + static_cast<u32>(i)) - 8388608.0f;
}

/// v shifted left, or right where `left` is negative.
__device__ __forceinline__ u32 shift(u32 v, int left) { return left >= 0 ? v << left : v >> -left; }

/// d, dmin and six-bit scales and minima of Q4_K and Q5_K, whose codes have `bits` bits. Lane t of a quad holds groups 2t and
/// 2t + 1 of rows g and g + 8.
template <u32 bits>
struct KScales {
  static constexpr float steps = 1u << bits;
  float scale[2][2], minimum[2][2];  ///< [row g, g + 8][group 2t, 2t + 1]; minima negated

  __device__ __forceinline__ void load(const unsigned char* cell, u32 lane, float weight_scale) {
    const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32* row = reinterpret_cast<const u32*>(cell + (g + 8 * h) * 16);
      const u32 dd = row[0];
      const float d = ptx::cvt_f32_f16(static_cast<unsigned short>(dd)) * weight_scale;
      const float dmin = ptx::cvt_f32_f16(static_cast<unsigned short>(dd >> 16)) * -weight_scale;
      const u32 bit = 24 * t, word = bit >> 5;
      const u32 packed = __funnelshift_r(row[1 + word], row[word < 2 ? 2 + word : 3], bit & 31);
      scale[h][0] = d * static_cast<float>(packed & 63);
      scale[h][1] = d * static_cast<float>((packed >> 6) & 63);
      minimum[h][0] = dmin * static_cast<float>((packed >> 12) & 63);
      minimum[h][1] = dmin * static_cast<float>((packed >> 18) & 63);
    }
  }
  /// For codes given as v = 1 + q / steps: scale * q + minimum = (steps * scale) v + (minimum - steps * scale), one multiply-add
  /// like the plain form and with the same bits where the constant is exact. Done if it is for every lane of the warp.
  __device__ __forceinline__ bool widen() {
    float wide[2][2], constant[2][2];
    bool exact = true;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const float w = scale[h][i] * steps, c = __fadd_rn(minimum[h][i], -w);
        // Where the difference is exact both of these hold, where it is rounded one of them fails (Dekker's two-sum).
        exact = exact && __fadd_rn(c, w) == minimum[h][i] && __fadd_rn(c, -minimum[h][i]) == -w;
        wide[h][i] = w, constant[h][i] = c;
      }
    }
    exact = __all_sync(~0u, exact);
#pragma unroll
    for (u32 h = 0; exact && h < 2; ++h) {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) scale[h][i] = wide[h][i], minimum[h][i] = constant[h][i];
    }
    return exact;
  }
  struct Pair {
    float scale, minimum;
  };
  /// Group 2 * plane + half of row g + 8 * h, from the lane of the quad that holds it.
  __device__ __forceinline__ Pair group(u32 plane, u32 half, u32 h, u32 lane) const {
    const u32 source = (lane & ~3u) | plane;
    return {__shfl_sync(~0u, scale[h][half], source), __shfl_sync(~0u, minimum[h][half], source)};
  }
  /// Values of one k16 step from the codes' bytes, plain or in the top of bytes whose bit 7 is set.
  template <bool widened>
  static __device__ __forceinline__ void values(u32 even, u32 odd, Pair low, Pair high, u32 (&a)[4]) {
    auto value = [](Pair s) {
      return [s](u32 bytes, int i) {
        return fmaf(s.scale, widened ? one_plus_128th(bytes, i) : whole_byte(bytes, i), s.minimum);
      };
    };
    fragments_of(even, odd, value(low), value(high), a);
  }
};

struct NoScales {
  __device__ __forceinline__ void load(const unsigned char*, u32, float) {}
  __device__ __forceinline__ bool widen() { return true; }
};
struct NoCodes {};

/// Scale of block `half` of a row of a cell of 32-value blocks: its header is two f16 scales a row.
__device__ __forceinline__ float block_scale(const unsigned char* cell, u32 row, u32 half, float weight_scale) {
  return ptx::cvt_f32_f16(reinterpret_cast<const unsigned short*>(cell)[row * 2 + half]) * weight_scale;
}

/// Words 2 half and 2 half + 1 of four.
__device__ __forceinline__ uint2 words_of_half(const uint4& v, u32 half) {
  return half == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
}

}  // namespace detail

template <>
struct Cell<QuantType::f16> {
  static constexpr u32 k = 64, header_bytes = 0, plane_bytes = 2048;
  using Scales = detail::NoScales;
  using Codes = detail::NoCodes;
  static __device__ __forceinline__ Codes codes(const unsigned char*, u32, u32) { return {}; }
  template <bool>
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes&, const Scales&, u32, u32 half, u32 lane,
                                                float, HalfFragments& a) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(cell)[(half * 2 + i) * 32 + lane];
      a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
    }
  }
};

template <>
struct Cell<QuantType::q4_k> {
  static constexpr u32 k = 256, header_bytes = 256, plane_bytes = 512;
  using Scales = detail::KScales<4>;
  using Codes = uint4;
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    return reinterpret_cast<const uint4*>(cell + header_bytes + plane * plane_bytes)[lane];
  }
  template <bool widened>
  static __device__ __forceinline__ void step(u32 w, Scales::Pair low, Scales::Pair high, u32 (&a)[4]) {
    if constexpr (widened) {
      Scales::values<true>(((w << 3) & 0x78787878u) | 0x80808080u, ((w >> 1) & 0x78787878u) | 0x80808080u, low, high, a);
    } else {
      Scales::values<false>(w & 0x0f0f0f0fu, (w >> 4) & 0x0f0f0f0fu, low, high, a);
    }
  }
  template <bool widened>
  static __device__ __forceinline__ void decode(const unsigned char*, const Codes& codes, const Scales& scales, u32 plane,
                                                u32 half, u32 lane, float, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes, half);
    const Scales::Pair low = scales.group(plane, half, 0, lane), high = scales.group(plane, half, 1, lane);
    step<widened>(v.x, low, high, a[0]);
    step<widened>(v.y, low, high, a[1]);
  }
};

/// Q5_K: nibbles as Q4_K; a word holds the fifth bits of a lane's plane: bit 2 * step + odd of byte i is that of code i.
template <>
struct Cell<QuantType::q5_k> {
  static constexpr u32 k = 256, header_bytes = 256, plane_bytes = 640;
  using Scales = detail::KScales<5>;
  struct Codes {
    uint4 low;
    u32 high;
  };
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    const unsigned char* data = cell + header_bytes + plane * plane_bytes;
    return {reinterpret_cast<const uint4*>(data)[lane], reinterpret_cast<const u32*>(data + 512)[lane]};
  }
  template <bool widened>
  static __device__ __forceinline__ void step(u32 w, u32 fifth, int index, Scales::Pair low, Scales::Pair high, u32 (&a)[4]) {
    if constexpr (widened) {
      Scales::values<true>(((w << 2) & 0x3c3c3c3cu) | (detail::shift(fifth, 6 - 2 * index) & 0x40404040u) | 0x80808080u,
                           ((w >> 2) & 0x3c3c3c3cu) | (detail::shift(fifth, 5 - 2 * index) & 0x40404040u) | 0x80808080u, low,
                           high, a);
    } else {
      Scales::values<false>((w & 0x0f0f0f0fu) | (detail::shift(fifth, 4 - 2 * index) & 0x10101010u),
                            ((w >> 4) & 0x0f0f0f0fu) | (detail::shift(fifth, 3 - 2 * index) & 0x10101010u), low, high, a);
    }
  }
  template <bool widened>
  static __device__ __forceinline__ void decode(const unsigned char*, const Codes& codes, const Scales& scales, u32 plane,
                                                u32 half, u32 lane, float, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes.low, half);
    const Scales::Pair low = scales.group(plane, half, 0, lane), high = scales.group(plane, half, 1, lane);
    step<widened>(v.x, codes.high, static_cast<int>(half) * 2, low, high, a[0]);
    step<widened>(v.y, codes.high, static_cast<int>(half) * 2 + 1, low, high, a[1]);
  }
};

/// Q6_K: nibbles as Q4_K; a word holds the high bits of two k16 steps: bits 4 * (step % 2) + 2 * odd of byte i are those of code i.
template <>
struct Cell<QuantType::q6_k> {
  static constexpr u32 k = 256, header_bytes = 288, plane_bytes = 768;
  using Scales = detail::NoScales;
  struct Codes {
    uint4 low;
    uint2 high;
  };
  /// With v = 1 + q / 128: (128 s) v - 160 s = s (q - 32); 128 s and 160 s of a scale s = d * sc are exact (22 bits), so there is
  /// one rounding.
  struct Row {
    float d128, d160;
    __device__ __forceinline__ Row(unsigned short bits, float weight_scale) {
      const float d = ptx::cvt_f32_f16(bits) * weight_scale;
      d128 = d * 128.0f, d160 = d * -160.0f;
    }
    __device__ __forceinline__ auto value(signed char code) const {
      // 2^23 + 128 + code, less 2^23 + 128
      const float sc = __uint_as_float(0x4b000000u | (static_cast<u32>(static_cast<unsigned char>(code)) ^ 128u)) - 8388736.0f;
      const float s128 = d128 * sc, s160 = d160 * sc;
      return [s128, s160](u32 bytes, int i) { return fmaf(s128, detail::one_plus_128th(bytes, i), s160); };
    }
  };
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    const unsigned char* data = cell + header_bytes + plane * plane_bytes;
    return {reinterpret_cast<const uint4*>(data)[lane], reinterpret_cast<const uint2*>(data + 512)[lane]};
  }
  template <bool>
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes& codes, const Scales&, u32 plane,
                                                u32 half, u32 lane, float weight_scale, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes.low, half);
    const u32 high = half == 0 ? codes.high.x : codes.high.y, g = lane >> 2;
    const unsigned short* d = reinterpret_cast<const unsigned short*>(cell + 256);
    const Row low_row(d[g], weight_scale), high_row(d[g + 8], weight_scale);
    const char2 sl = *reinterpret_cast<const char2*>(cell + g * 16 + 4 * plane + 2 * half);
    const char2 sh = *reinterpret_cast<const char2*>(cell + (g + 8) * 16 + 4 * plane + 2 * half);
    detail::fragments_of((v.x & 0x0f0f0f0fu) | (detail::shift(high, 4) & 0x30303030u) | 0x80808080u,
                         ((v.x >> 4) & 0x0f0f0f0fu) | (detail::shift(high, 2) & 0x30303030u) | 0x80808080u, low_row.value(sl.x),
                         high_row.value(sh.x), a[0]);
    detail::fragments_of((v.y & 0x0f0f0f0fu) | (high & 0x30303030u) | 0x80808080u,
                         ((v.y >> 4) & 0x0f0f0f0fu) | (detail::shift(high, -2) & 0x30303030u) | 0x80808080u,
                         low_row.value(sl.y), high_row.value(sh.y), a[1]);
  }
};

template <>
struct Cell<QuantType::q4_0> {
  static constexpr u32 k = 64, header_bytes = 64, plane_bytes = 512;
  using Scales = detail::NoScales;
  /// (128 d) v - 136 d = d (q - 8) with v = 1 + q / 128; 136 d is exact.
  static __device__ __forceinline__ void step(u32 w, float low, float high, u32 (&a)[4]) {
    auto value = [](float d) {
      const float d128 = d * 128.0f, d136 = d * -136.0f;
      return [d128, d136](u32 bytes, int i) { return fmaf(d128, detail::one_plus_128th(bytes, i), d136); };
    };
    detail::fragments_of((w & 0x0f0f0f0fu) | 0x80808080u, ((w >> 4) & 0x0f0f0f0fu) | 0x80808080u, value(low),
                         value(high), a);
  }
  using Codes = uint4;
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32, u32 lane) {
    return reinterpret_cast<const uint4*>(cell + header_bytes)[lane];
  }
  template <bool>
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes& codes, const Scales&, u32, u32 half,
                                                u32 lane, float weight_scale, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes, half);
    const float low = detail::block_scale(cell, lane >> 2, half, weight_scale);
    const float high = detail::block_scale(cell, (lane >> 2) + 8, half, weight_scale);
    step(v.x, low, high, a[0]);
    step(v.y, low, high, a[1]);
  }
};

template <>
struct Cell<QuantType::q8_0> {
  static constexpr u32 k = 64, header_bytes = 64, plane_bytes = 1024;
  using Scales = detail::NoScales;
  /// Bytes are q + 128. With v = 1 + byte / 32768: (32768 d) v - 32896 d = d q; 32896 d is exact (11 + 9 bits).
  static __device__ __forceinline__ void step(u32 low_bytes, u32 high_bytes, float low, float high, u32 (&a)[4]) {
    auto value = [](float d) {
      const float scale = d * 32768.0f, offset = d * -32896.0f;
      return [scale, offset](u32 bytes, int i) {
        return fmaf(scale, detail::byte_as_float(bytes, 0x3f800000u, 0x7604u + (static_cast<u32>(i) << 4)), offset);
      };
    };
    detail::fragments_of(low_bytes, high_bytes, value(low), value(high), a);
  }
  using Codes = detail::NoCodes;
  static __device__ __forceinline__ Codes codes(const unsigned char*, u32, u32) { return {}; }
  template <bool>
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes&, const Scales&, u32, u32 half, u32 lane,
                                                float weight_scale, HalfFragments& a) {
    const uint4 v = reinterpret_cast<const uint4*>(cell + header_bytes)[half * 32 + lane];
    const float low = detail::block_scale(cell, lane >> 2, half, weight_scale);
    const float high = detail::block_scale(cell, (lane >> 2) + 8, half, weight_scale);
    step(v.x, v.y, low, high, a[0]);
    step(v.z, v.w, low, high, a[1]);
  }
};

}  // namespace quern::cuda
