#pragma once

#include <cstddef>

// The reference decoders, one a type, that the quant-type table points at.
//
// Order of operations. Let d and dmin be the block's f16 scales as f32, sc and m its integer
// sub-scales, q its integer quants. Every type is one of
//
//   plain      d                                    f32, f16, bf16
//   scaled     (d * sc) * q   (sc = 1 where none)   q4_0 q5_0 q8_0 q3_k q6_k iq4_nl iq4_xs mxfp4
//   affine     (d * sc) * q - dmin * m              q2_k q4_k q5_k;  q * d + m for q4_1 and q5_1
//
// An f16 scale has 11 significant bits, sub-scales at most 7 and quants at most 7 (q6_k: 11 + 7 +
// 5; iq4_xs: 11 + 5 + 7), so each product above has at most 24 bits and is exact in f32; exponents
// of f16 products stay far from f32's limits. The scaled types are therefore exact in any order,
// and the affine ones round once, in the final addition, whether written with a multiply and a
// subtraction (as here) or as fma(d * sc, q, -(dmin * m)) (as on devices): the bits are the same.
// mxfp4's scale is a power of two from 2^-128: exact too, subnormals included; e = 255 overflows to
// infinity for the codes above one.
namespace quern::decode {

void f32(const std::byte* src, float* dst, size_t blocks);
void f16(const std::byte* src, float* dst, size_t blocks);
void bf16(const std::byte* src, float* dst, size_t blocks);
void q4_0(const std::byte* src, float* dst, size_t blocks);
void q4_1(const std::byte* src, float* dst, size_t blocks);
void q5_0(const std::byte* src, float* dst, size_t blocks);
void q5_1(const std::byte* src, float* dst, size_t blocks);
void q8_0(const std::byte* src, float* dst, size_t blocks);
void q2_k(const std::byte* src, float* dst, size_t blocks);
void q3_k(const std::byte* src, float* dst, size_t blocks);
void q4_k(const std::byte* src, float* dst, size_t blocks);
void q5_k(const std::byte* src, float* dst, size_t blocks);
void q6_k(const std::byte* src, float* dst, size_t blocks);
void iq4_nl(const std::byte* src, float* dst, size_t blocks);
void iq4_xs(const std::byte* src, float* dst, size_t blocks);
void mxfp4(const std::byte* src, float* dst, size_t blocks);

}  // namespace quern::decode
