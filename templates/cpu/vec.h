#pragma once

// Vector code of the CPU templates: 16 lanes of f32, split by the compiler where the target's
// registers are narrower. Every operation is defined lane by lane or by a fixed tree, so that bits
// depend on the target in no way but where it has no fused multiply-add (which the compiler
// refuses).

#include "templates/spec/types.h"

#define QUERN_INLINE inline __attribute__((always_inline))
#define QUERN_INLINE_LAMBDA __attribute__((always_inline))

namespace quern::cpu {

using spec::u32;
using i8 = signed char;
using i32 = int;
using u8 = unsigned char;
using u16 = unsigned short;
using u64 = unsigned long;

/// Lanes of every vector: the rows of a cell.
inline constexpr u32 lanes = 16;

using f32x16 = float __attribute__((ext_vector_type(16)));
using i32x16 = i32 __attribute__((ext_vector_type(16)));
using u32x16 = u32 __attribute__((ext_vector_type(16)));
using u16x16 = u16 __attribute__((ext_vector_type(16)));
using u8x16 = u8 __attribute__((ext_vector_type(16)));
using i8x16 = i8 __attribute__((ext_vector_type(16)));
using f16x16 = _Float16 __attribute__((ext_vector_type(16)));

/// Reads a vector at any address.
template <class Vector>
QUERN_INLINE Vector load(const void* p) {
  struct __attribute__((packed, may_alias)) Unaligned {
    Vector v;
  };
  return static_cast<const Unaligned*>(p)->v;
}

/// Writes a vector to any address.
template <class Vector>
QUERN_INLINE void store(void* p, Vector v) {
  struct __attribute__((packed, may_alias)) Unaligned {
    Vector v;
  };
  static_cast<Unaligned*>(p)->v = v;
}

QUERN_INLINE f32x16 load_f32(const float* p) {
  return load<f32x16>(p);
}
QUERN_INLINE void store_f32(float* p, f32x16 v) {
  store<f32x16>(p, v);
}

/// The first n lanes (n <= 16) from memory, zero in the others.
QUERN_INLINE f32x16 load_f32(const float* p, u32 n) {
  f32x16 v = 0.0f;
  for (u32 i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
/// The first n lanes (n <= 16) to memory.
QUERN_INLINE void store_f32(float* p, f32x16 v, u32 n) {
  for (u32 i = 0; i < n; ++i) p[i] = v[i];
}

QUERN_INLINE f32x16 splat(float x) {
  return f32x16(x);
}
/// a * b + c, rounded once.
QUERN_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return __builtin_elementwise_fma(a, b, c);
}
QUERN_INLINE float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

QUERN_INLINE f32x16 to_f32(i32x16 v) {
  return __builtin_convertvector(v, f32x16);
}
QUERN_INLINE f32x16 to_f32(f16x16 v) {
  return __builtin_convertvector(v, f32x16);
}
QUERN_INLINE i32x16 widen(u8x16 v) {
  return __builtin_convertvector(v, i32x16);
}
QUERN_INLINE i32x16 widen(i8x16 v) {
  return __builtin_convertvector(v, i32x16);
}
QUERN_INLINE u32x16 widen(u16x16 v) {
  return __builtin_convertvector(v, u32x16);
}
QUERN_INLINE u32x16 bits(f32x16 v) {
  return __builtin_bit_cast(u32x16, v);
}
QUERN_INLINE f32x16 from_bits(u32x16 v) {
  return __builtin_bit_cast(f32x16, v);
}
QUERN_INLINE u32 bits(float v) {
  return __builtin_bit_cast(u32, v);
}
QUERN_INLINE float from_bits(u32 v) {
  return __builtin_bit_cast(float, v);
}

/// Lane by lane condition ? a : b.
QUERN_INLINE f32x16 select(i32x16 condition, f32x16 a, f32x16 b) {
  return condition ? a : b;
}
QUERN_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return select(a > b, a, b);
}
QUERN_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return select(a < b, a, b);
}

/// Sum of the lanes by halves: lane i with lane i + 8, then i + 4, i + 2, i + 1.
QUERN_INLINE float sum(f32x16 v) {
  const auto a = v.lo + v.hi;
  const auto b = a.lo + a.hi;
  const auto c = b.lo + b.hi;
  return c.x + c.y;
}

/// Largest lane, by the same tree.
QUERN_INLINE float max(f32x16 v) {
  const auto a = v.lo > v.hi ? v.lo : v.hi;
  const auto b = a.lo > a.hi ? a.lo : a.hi;
  const auto c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}

/// e^x within 1 ulp where the result is a normal number; 0 from -104 down (also for -inf), inf from
/// 88.73 up. x = n ln 2 + r, e^r by the polynomial of Cephes' expf, 2^n in two exact factors.
QUERN_INLINE f32x16 exp(f32x16 x) {
  const f32x16 magic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits.
  const f32x16 clamped = min(max(x, splat(-104.0f)), splat(89.0f));
  const f32x16 shifted = fma(clamped, splat(1.44269504f), magic);
  const f32x16 n = shifted - magic;
  f32x16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = fma(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + splat(1.0f);
  const i32x16 exponent = __builtin_bit_cast(i32x16, bits(shifted) - bits(magic));
  const i32x16 first = exponent >> 1;
  const i32x16 second = exponent - first;
  const f32x16 scale_a = __builtin_bit_cast(f32x16, (first + 127) << 23);
  const f32x16 scale_b = __builtin_bit_cast(f32x16, (second + 127) << 23);
  const f32x16 y = p * scale_a * scale_b;
  return select(x < splat(-104.0f), splat(0.0f), select(x != x, x, y));
}

/// 1 / (1 + e^-x).
QUERN_INLINE f32x16 sigmoid(f32x16 x) {
  return splat(1.0f) / (splat(1.0f) + exp(-x));
}

/// x * sigmoid(x).
QUERN_INLINE f32x16 silu(f32x16 x) {
  return x / (splat(1.0f) + exp(-x));
}

/// tanh x: Cephes' odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) with x's sign above.
QUERN_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 magnitude = from_bits(bits(x) & 0x7fffffffu);
  const f32x16 z = x * x;
  f32x16 p = fma(splat(-5.70498872745e-3f), z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const f32x16 small = fma(p * z, x, x);
  const f32x16 big = splat(1.0f) - splat(2.0f) / (exp(magnitude + magnitude) + splat(1.0f));
  const f32x16 signed_big = from_bits(bits(big) | (bits(x) & 0x80000000u));
  return select(magnitude < splat(0.625f), small, signed_big);
}

/// The tanh form of GELU, x/2 * (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), written as
/// x / (1 + e^-2u), which loses nothing where tanh is near -1.
QUERN_INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 u = splat(0.7978845608f) * fma(splat(0.044715f) * x, x * x, x);
  return x / (splat(1.0f) + exp(splat(-2.0f) * u));
}

QUERN_INLINE float exp(float x) {
  return exp(splat(x)).x;
}
QUERN_INLINE float sigmoid(float x) {
  return sigmoid(splat(x)).x;
}
QUERN_INLINE float silu(float x) {
  return silu(splat(x)).x;
}

}  // namespace quern::cpu
