#pragma once

#include "templates/cuda/ptx/convert.cuh"
#include "templates/spec/types.h"

// Weight cells of 16 rows and their decoders (docs/gpu.md, "Layouts"). A lane reads its codes of a 64-K plane (`Codes`); a decoder
// turns half of them into the A fragments of two k16 steps, four registers each, of rows g = lane / 4 and g + 8. Every weight is
// rn_f16(2^s_w * fma_f32(d * sc, q, -dmin * m)) and the like: one rounding.
//
// A code of up to nine bits is, as the bits of a half, the subnormal q * 2^-24: one mask makes two of them, and the conversion to
// f32 is exact. The scale takes the 2^24 back, exactly too. Codes of rows g + 8 lie four bits higher in their halves: 16 q.

namespace quern::cuda {

using spec::QuantType;
using spec::u32;

template <QuantType type>
struct Cell;  // k, header_bytes, plane_bytes; Scales; Codes, codes; decode

using Fragments = u32[4][4];      ///< Of a plane ...
using HalfFragments = u32[2][4];  ///< ... and of half of one.

/// Bytes of a cell.
template <QuantType type>
__host__ __device__ constexpr u32 cell_bytes() {
  return Cell<type>::header_bytes + Cell<type>::k / 64 * Cell<type>::plane_bytes;
}

/// The fragments of a whole plane.
template <QuantType type>
__device__ __forceinline__ void decode_plane(const unsigned char* cell, const typename Cell<type>::Scales& scales, u32 plane,
                                             u32 lane, float weight_scale, Fragments& a) {
  const typename Cell<type>::Codes codes = Cell<type>::codes(cell, plane, lane);
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    HalfFragments part;
    Cell<type>::decode(cell, codes, scales, plane, half, lane, weight_scale, part);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) a[half * 2][i] = part[0][i], a[half * 2 + 1][i] = part[1][i];
  }
}

namespace detail {

/// What the halves of codes of row g (unit 1) and g + 8 (unit 16) are multiplied by.
constexpr float unit_scale(u32 unit) { return 16777216.0f / static_cast<float>(unit); }

/// scale * code + offset, the scale for codes as subnormal halves.
struct Line {
  float scale, offset;
  /// Two codes, rounded to the halves of a register.
  __device__ __forceinline__ u32 pair(u32 codes) const {
    const float low = ptx::cvt_f32_f16(static_cast<unsigned short>(codes));
    const float high = ptx::cvt_f32_f16(static_cast<unsigned short>(codes >> 16));
    return ptx::cvt_rn_f16x2_f32(fmaf(scale, low, offset), fmaf(scale, high, offset));
  }
};

/// v shifted left, or right where `left` is negative.
__device__ __forceinline__ u32 shift(u32 v, int left) { return left >= 0 ? v << left : v >> -left; }

/// Fragments of one k16 step: nibbles i and i + 4 of `w` are the codes of register i, with `bits` high bits each that lie at
/// 4 i + `at` (and 16 beyond) of `high`.
template <u32 bits>
__device__ __forceinline__ void fragments_of(u32 w, u32 high, int at, Line low_row, Line high_row, u32 (&a)[4]) {
  constexpr u32 even = ((1u << bits) - 1) * 0x00100010u, odd = even << 4;
  const u32 w8 = w >> 8, high0 = shift(high, 4 - at), high8 = shift(high, -4 - at);
  a[0] = low_row.pair((w & 0x000f000fu) | (high0 & even));
  a[1] = high_row.pair((w & 0x00f000f0u) | (high0 & odd));
  a[2] = low_row.pair((w8 & 0x000f000fu) | (high8 & even));
  a[3] = high_row.pair((w8 & 0x00f000f0u) | (high8 & odd));
}

/// d, dmin and six-bit scales and minima of Q4_K and Q5_K. Lane t of a quad holds groups 2t and 2t + 1 of rows g and g + 8.
struct KScales {
  Line lines[2][2];  ///< [row g, g + 8][group 2t, 2t + 1]

  __device__ __forceinline__ void load(const unsigned char* cell, u32 lane, float weight_scale) {
    const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32* row = reinterpret_cast<const u32*>(cell + (g + 8 * h) * 16);
      const u32 dd = row[0];
      const float d = ptx::cvt_f32_f16(static_cast<unsigned short>(dd)) * (weight_scale * unit_scale(h == 0 ? 1 : 16));
      const float dmin = ptx::cvt_f32_f16(static_cast<unsigned short>(dd >> 16)) * -weight_scale;
      const u32 bit = 24 * t, word = bit >> 5;
      const u32 packed = __funnelshift_r(row[1 + word], row[word < 2 ? 2 + word : 3], bit & 31);
      lines[h][0] = {d * static_cast<float>(packed & 63), dmin * static_cast<float>((packed >> 12) & 63)};
      lines[h][1] = {d * static_cast<float>((packed >> 6) & 63), dmin * static_cast<float>((packed >> 18) & 63)};
    }
  }
  /// Group 2 * plane + half of row g + 8 * h, from the lane of the quad that holds it.
  __device__ __forceinline__ Line group(u32 plane, u32 half, u32 h, u32 lane) const {
    const u32 source = (lane & ~3u) | plane;
    return {__shfl_sync(~0u, lines[h][half].scale, source), __shfl_sync(~0u, lines[h][half].offset, source)};
  }
};

/// d and eight-bit scales of Q6_K. Lane t of a quad holds the groups of 16 of plane t of rows g and g + 8.
struct Q6Scales {
  float scales[2][4];  ///< [row g, g + 8][group of the plane], for codes as subnormal halves.

  __device__ __forceinline__ void load(const unsigned char* cell, u32 lane, float weight_scale) {
    const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const float d = ptx::cvt_f32_f16(reinterpret_cast<const unsigned short*>(cell + 256)[g + 8 * h]) *
                      (weight_scale * unit_scale(h == 0 ? 1 : 16));
      // 2^23 + 128 + code, less 2^23 + 128: conversions of integers are slow.
      const u32 codes = reinterpret_cast<const u32*>(cell + (g + 8 * h) * 16)[t] ^ 0x80808080u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        scales[h][i] = d * (__uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7540 + i)) - 8388736.0f);
      }
    }
  }
  /// A group of a plane of row g (unit 1) or g + 8 (unit 16), from the lane of the quad that holds it; codes less 32.
  template <u32 unit>
  __device__ __forceinline__ Line group(u32 plane, u32 i, u32 lane) const {
    const float scale = __shfl_sync(~0u, scales[unit == 1 ? 0 : 1][i], (lane & ~3u) | plane);
    return {scale, scale * (-32.0f / unit_scale(unit))};
  }
};

struct NoScales {
  __device__ __forceinline__ void load(const unsigned char*, u32, float) {}
};
struct NoCodes {};

/// Scale of block `half` of a row of a cell of 32-value blocks: its header is two f16 scales a row.
__device__ __forceinline__ float block_scale(const unsigned char* cell, u32 row, u32 half, float weight_scale) {
  return ptx::cvt_f32_f16(reinterpret_cast<const unsigned short*>(cell)[row * 2 + half]) * weight_scale;
}

/// scale * (q - zero), exactly: the product with a power of two and with a small integer are.
__device__ __forceinline__ Line centred(float scale, float zero, u32 unit) { return {scale * unit_scale(unit), -zero * scale}; }

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
  using Scales = detail::KScales;
  using Codes = uint4;
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    return reinterpret_cast<const uint4*>(cell + header_bytes + plane * plane_bytes)[lane];
  }
  static __device__ __forceinline__ void decode(const unsigned char*, const Codes& codes, const Scales& scales, u32 plane,
                                                u32 half, u32 lane, float, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes, half);
    const detail::Line low = scales.group(plane, half, 0, lane), high = scales.group(plane, half, 1, lane);
    detail::fragments_of<0>(v.x, 0, 0, low, high, a[0]);
    detail::fragments_of<0>(v.y, 0, 0, low, high, a[1]);
  }
};

/// Q5_K: nibbles as Q4_K; a word holds the fifth bits of a lane's plane: bit 4 * i + step is that of register i's low half, 16
/// beyond it that of its high half.
template <>
struct Cell<QuantType::q5_k> {
  static constexpr u32 k = 256, header_bytes = 256, plane_bytes = 640;
  using Scales = detail::KScales;
  struct Codes {
    uint4 low;
    u32 high;
  };
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    const unsigned char* data = cell + header_bytes + plane * plane_bytes;
    return {reinterpret_cast<const uint4*>(data)[lane], reinterpret_cast<const u32*>(data + 512)[lane]};
  }
  static __device__ __forceinline__ void decode(const unsigned char*, const Codes& codes, const Scales& scales, u32 plane,
                                                u32 half, u32 lane, float, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes.low, half);
    const int step = static_cast<int>(half) * 2;
    const detail::Line low = scales.group(plane, half, 0, lane), high = scales.group(plane, half, 1, lane);
    detail::fragments_of<1>(v.x, codes.high, step, low, high, a[0]);
    detail::fragments_of<1>(v.y, codes.high, step + 1, low, high, a[1]);
  }
};

/// Q6_K: nibbles as Q4_K; a word holds the high bits of two k16 steps: bits 4 * i + 2 * (step % 2) are those of register i's low
/// half, 16 beyond them those of its high half.
template <>
struct Cell<QuantType::q6_k> {
  static constexpr u32 k = 256, header_bytes = 288, plane_bytes = 768;
  using Scales = detail::Q6Scales;
  struct Codes {
    uint4 low;
    uint2 high;
  };
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32 plane, u32 lane) {
    const unsigned char* data = cell + header_bytes + plane * plane_bytes;
    return {reinterpret_cast<const uint4*>(data)[lane], reinterpret_cast<const uint2*>(data + 512)[lane]};
  }
  static __device__ __forceinline__ void decode(const unsigned char*, const Codes& codes, const Scales& scales, u32 plane,
                                                u32 half, u32 lane, float, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes.low, half);
    const u32 high = half == 0 ? codes.high.x : codes.high.y;
    detail::fragments_of<2>(v.x, high, 0, scales.group<1>(plane, half * 2, lane), scales.group<16>(plane, half * 2, lane), a[0]);
    detail::fragments_of<2>(v.y, high, 2, scales.group<1>(plane, half * 2 + 1, lane),
                            scales.group<16>(plane, half * 2 + 1, lane), a[1]);
  }
};

template <>
struct Cell<QuantType::q4_0> {
  static constexpr u32 k = 64, header_bytes = 64, plane_bytes = 512;
  using Scales = detail::NoScales;
  using Codes = uint4;
  static __device__ __forceinline__ Codes codes(const unsigned char* cell, u32, u32 lane) {
    return reinterpret_cast<const uint4*>(cell + header_bytes)[lane];
  }
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes& codes, const Scales&, u32, u32 half,
                                                u32 lane, float weight_scale, HalfFragments& a) {
    const uint2 v = detail::words_of_half(codes, half);
    const detail::Line low = detail::centred(detail::block_scale(cell, lane >> 2, half, weight_scale), 8, 1);
    const detail::Line high = detail::centred(detail::block_scale(cell, (lane >> 2) + 8, half, weight_scale), 8, 16);
    detail::fragments_of<0>(v.x, 0, 0, low, high, a[0]);
    detail::fragments_of<0>(v.y, 0, 0, low, high, a[1]);
  }
};

/// Bytes are q + 128: a word holds those of registers i (bytes 0 and 2) and i + 2 of one row.
template <>
struct Cell<QuantType::q8_0> {
  static constexpr u32 k = 64, header_bytes = 64, plane_bytes = 1024;
  using Scales = detail::NoScales;
  using Codes = detail::NoCodes;
  static __device__ __forceinline__ Codes codes(const unsigned char*, u32, u32) { return {}; }
  static __device__ __forceinline__ void step(u32 low_bytes, u32 high_bytes, detail::Line low, detail::Line high, u32 (&a)[4]) {
    a[0] = low.pair(low_bytes & 0x00ff00ffu);
    a[1] = high.pair(high_bytes & 0x00ff00ffu);
    a[2] = low.pair((low_bytes >> 8) & 0x00ff00ffu);
    a[3] = high.pair((high_bytes >> 8) & 0x00ff00ffu);
  }
  static __device__ __forceinline__ void decode(const unsigned char* cell, const Codes&, const Scales&, u32, u32 half, u32 lane,
                                                float weight_scale, HalfFragments& a) {
    const uint4 v = reinterpret_cast<const uint4*>(cell + header_bytes)[half * 32 + lane];
    const detail::Line low = detail::centred(detail::block_scale(cell, lane >> 2, half, weight_scale), 128, 1);
    const detail::Line high = detail::centred(detail::block_scale(cell, (lane >> 2) + 8, half, weight_scale), 128, 1);
    step(v.x, v.y, low, high, a[0]);
    step(v.z, v.w, low, high, a[1]);
  }
};

}  // namespace quern::cuda
