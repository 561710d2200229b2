#pragma once

#include "templates/cuda/ptx/convert.cuh"
#include "templates/spec/types.h"

// Quantised blocks as the file has them (FACTS section A): one value at a time, for the kernels that read each value once (repacking,
// embedding). `code` is the stored integer, `value` its f32 by the host's formula: products exact, one rounding.

namespace quern::cuda {

using spec::QuantType;
using spec::u32;
using Byte = unsigned char;

__device__ __forceinline__ unsigned short load_u16(const Byte* p) {
  return static_cast<unsigned short>(p[0] | p[1] << 8);
}
__device__ __forceinline__ u32 load_u32(const Byte* p) { return load_u16(p) | static_cast<u32>(load_u16(p + 2)) << 16; }
__device__ __forceinline__ float load_f16(const Byte* p) { return ptx::cvt_f32_f16(load_u16(p)); }

template <QuantType type>
struct Raw;

template <>
struct Raw<QuantType::f32> {
  static constexpr u32 values = 1, bytes = 4;
  static __device__ float value(const Byte* b, u32) { return __uint_as_float(load_u32(b)); }
};
template <>
struct Raw<QuantType::f16> {
  static constexpr u32 values = 1, bytes = 2;
  static __device__ float value(const Byte* b, u32) { return load_f16(b); }
};
template <>
struct Raw<QuantType::bf16> {
  static constexpr u32 values = 1, bytes = 2;
  static __device__ float value(const Byte* b, u32) { return ptx::cvt_f32_bf16(load_u16(b)); }
};

/// The 4-bit code of value i where qs[16] holds values 0-15 in low and 16-31 in high nibbles.
__device__ __forceinline__ u32 split_nibble(const Byte* qs, u32 i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

template <>
struct Raw<QuantType::q4_0> {
  static constexpr u32 values = 32, bytes = 18;
  static __device__ u32 code(const Byte* b, u32 i) { return split_nibble(b + 2, i); }
  static __device__ float value(const Byte* b, u32 i) {
    return load_f16(b) * static_cast<float>(static_cast<int>(code(b, i)) - 8);
  }
};
template <>
struct Raw<QuantType::q4_1> {
  static constexpr u32 values = 32, bytes = 20;
  static __device__ float value(const Byte* b, u32 i) {
    return fmaf(load_f16(b), static_cast<float>(split_nibble(b + 4, i)), load_f16(b + 2));
  }
};
template <>
struct Raw<QuantType::q5_0> {
  static constexpr u32 values = 32, bytes = 22;
  static __device__ float value(const Byte* b, u32 i) {
    const u32 q = split_nibble(b + 6, i) | (load_u32(b + 2) >> i & 1) << 4;
    return load_f16(b) * static_cast<float>(static_cast<int>(q) - 16);
  }
};
template <>
struct Raw<QuantType::q5_1> {
  static constexpr u32 values = 32, bytes = 24;
  static __device__ float value(const Byte* b, u32 i) {
    const u32 q = split_nibble(b + 8, i) | (load_u32(b + 4) >> i & 1) << 4;
    return fmaf(load_f16(b), static_cast<float>(q), load_f16(b + 2));
  }
};
template <>
struct Raw<QuantType::q8_0> {
  static constexpr u32 values = 32, bytes = 34;
  static __device__ int code(const Byte* b, u32 i) { return static_cast<signed char>(b[2 + i]); }
  static __device__ float value(const Byte* b, u32 i) { return load_f16(b) * static_cast<float>(code(b, i)); }
};

template <>
struct Raw<QuantType::q2_k> {
  static constexpr u32 values = 256, bytes = 84;
  static __device__ float value(const Byte* b, u32 i) {
    const u32 q = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, scale = b[i / 16];
    return fmaf(load_f16(b + 80) * static_cast<float>(scale & 15), static_cast<float>(q),
                -(load_f16(b + 82) * static_cast<float>(scale >> 4)));
  }
};
template <>
struct Raw<QuantType::q3_k> {
  static constexpr u32 values = 256, bytes = 110;
  static __device__ float value(const Byte* b, u32 i) {
    const int low = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const int q = low - ((b[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
    const Byte* s = b + 96;
    const u32 j = i / 16;
    const int scale = static_cast<int>((j < 8 ? s[j] & 15 : s[j - 8] >> 4) | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
    return load_f16(b + 108) * static_cast<float>(scale) * static_cast<float>(q);
  }
};

/// Six-bit scale and minimum of group j of Q4_K and Q5_K.
__device__ __forceinline__ void k_scale(const Byte* b, u32 j, u32& scale, u32& minimum) {
  if (j < 4) {
    scale = b[j] & 63, minimum = b[j + 4] & 63;
  } else {
    scale = (b[j + 4] & 15) | (b[j - 4] >> 6) << 4, minimum = (b[j + 4] >> 4) | (b[j] >> 6) << 4;
  }
}
template <>
struct Raw<QuantType::q4_k> {
  static constexpr u32 values = 256, bytes = 144;
  static __device__ u32 code(const Byte* b, u32 i) {
    const Byte q = b[16 + i / 64 * 32 + i % 32];
    return i % 64 < 32 ? q & 15 : q >> 4;
  }
  static __device__ float value(const Byte* b, u32 i) {
    u32 scale, minimum;
    k_scale(b + 4, i / 32, scale, minimum);
    return fmaf(load_f16(b) * static_cast<float>(scale), static_cast<float>(code(b, i)),
                -(load_f16(b + 2) * static_cast<float>(minimum)));
  }
};
template <>
struct Raw<QuantType::q5_k> {
  static constexpr u32 values = 256, bytes = 176;
  static __device__ u32 code(const Byte* b, u32 i) {
    const Byte q = b[48 + i / 64 * 32 + i % 32];
    return (i % 64 < 32 ? q & 15 : q >> 4) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
  }
  static __device__ float value(const Byte* b, u32 i) {
    u32 scale, minimum;
    k_scale(b + 4, i / 32, scale, minimum);
    return fmaf(load_f16(b) * static_cast<float>(scale), static_cast<float>(code(b, i)),
                -(load_f16(b + 2) * static_cast<float>(minimum)));
  }
};
template <>
struct Raw<QuantType::q6_k> {
  static constexpr u32 values = 256, bytes = 210;
  static __device__ u32 code(const Byte* b, u32 i) {
    const u32 half = i / 128, quarter = i % 128 / 32, l = i % 32;
    const Byte low = b[half * 64 + (quarter & 1) * 32 + l];
    return (quarter < 2 ? low & 15 : low >> 4) | (b[128 + half * 32 + l] >> (quarter * 2) & 3) << 4;
  }
  static __device__ float value(const Byte* b, u32 i) {
    return load_f16(b + 208) * static_cast<float>(static_cast<signed char>(b[192 + i / 16])) *
           static_cast<float>(static_cast<int>(code(b, i)) - 32);
  }
};

__device__ __forceinline__ float iq4_code(u32 q) {
  constexpr signed char table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return static_cast<float>(table[q]);
}
template <>
struct Raw<QuantType::iq4_nl> {
  static constexpr u32 values = 32, bytes = 18;
  static __device__ float value(const Byte* b, u32 i) { return load_f16(b) * iq4_code(split_nibble(b + 2, i)); }
};
template <>
struct Raw<QuantType::iq4_xs> {
  static constexpr u32 values = 256, bytes = 136;
  static __device__ float value(const Byte* b, u32 i) {
    const u32 j = i / 32;
    const int scale = static_cast<int>((b[4 + j / 2] >> (j % 2 * 4) & 15) | (load_u16(b + 2) >> (2 * j) & 3) << 4) - 32;
    return load_f16(b) * static_cast<float>(scale) * iq4_code(split_nibble(b + 8 + j * 16, i % 32));
  }
};
template <>
struct Raw<QuantType::mxfp4> {
  static constexpr u32 values = 32, bytes = 17;
  static __device__ float value(const Byte* b, u32 i) {
    constexpr signed char table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    // 2^(e - 128): below the normal range by its own bit pattern.
    const u32 e = b[0];
    const float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    return scale * static_cast<float>(table[split_nibble(b + 1, i)]);
  }
};

/// Value `k` of a row.
template <QuantType type>
__device__ __forceinline__ float raw_value(const Byte* row, u32 k) {
  return Raw<type>::value(row + static_cast<size_t>(k / Raw<type>::values) * Raw<type>::bytes, k % Raw<type>::values);
}

}  // namespace quern::cuda
