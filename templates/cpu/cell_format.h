#pragma once

// Sizes of the CPU's weight cells; included by the host (for arithmetic) and by the templates.

#include "templates/spec/types.h"

namespace quern::cpu {

using spec::QuantType;
using spec::u32;

/// Rows of a cell: one per vector lane.
inline constexpr u32 cell_rows = 16;
/// Values along K that a decoder yields at a time.
inline constexpr u32 octet_values = 8;

/// 32-bit values of the list of used experts before a tile's scratch (whole 64-byte lines).
constexpr u32 list_values(u32 n_expert) {
  return (n_expert + 15) / 16 * 16;
}

/// How a type's values are made of its quants ("codes"), and how a cell stores them.
///
/// A cell holds 16 rows over all of K, block after block. A block holds, with the 16 rows side by
/// side in every plane:
///
///   d       [16] of d_bytes       the file's scale: f16, or E8M0 for mxfp4
///   m       [16] of f16           second scale, where `second` is set
///   scales  [values / sub][16]    signed bytes, unpacked; q2_k: (scale | min << 4) as in the file
///   mins    [values / sub][16]    unsigned bytes, where `mins` is set
///   codes   octets of 8 values, each `bits` * 16 bytes
///
/// The codes of an octet are cut into at most two planes of 8, 4, 2 or 1 bits; a plane of w bits
/// has w rows of 16 bytes, and byte r of row i holds row r's values i * (8 / w) and following,
/// lowest first. f32, f16 and bf16 have blocks of one octet, [8][16] elements; their K is padded
/// with zeros to whole octets.
struct CellFormat {
  u32 file_values = 0;  ///< Values of a block in the file.
  u32 file_bytes = 0;   ///< Bytes of a block in the file.
  u32 values = 0;       ///< Values of a cell's block along K.
  u32 sub = 0;          ///< Values that share a sub-scale (all of the block where there is none).
  u32 bits = 0;         ///< Bits of a code.
  u32 d_bytes = 0;
  bool second = false;
  bool scales = false;
  bool mins = false;
  bool affine = false;  ///< Value = a * code + b; else a * (code - offset) or a * table[code].
  int offset = 0;

  constexpr bool is_float() const { return bits >= 16; }
  constexpr u32 sub_blocks() const { return values / sub; }
  /// Bytes before the codes of a block.
  constexpr u32 header_bytes() const {
    return cell_rows *
           (d_bytes + (second ? 2 : 0) + (scales ? sub_blocks() : 0) + (mins ? sub_blocks() : 0));
  }
  constexpr u32 octet_bytes() const { return cell_rows * bits; }
  /// Bytes of 16 rows of a block.
  constexpr u32 block_bytes() const {
    return header_bytes() + values / octet_values * octet_bytes();
  }
  /// Bytes of a cell: 16 rows of k values.
  constexpr unsigned long cell_bytes(unsigned long k) const {
    return (k + values - 1) / values * block_bytes();
  }
};

constexpr CellFormat cell_format(QuantType type) {
  switch (type) {
    case QuantType::f32:
      return {.file_values = 1, .file_bytes = 4, .values = 8, .sub = 8, .bits = 32};
    case QuantType::f16:
    case QuantType::bf16:
      return {.file_values = 1, .file_bytes = 2, .values = 8, .sub = 8, .bits = 16};
    case QuantType::q4_0:
      return {.file_values = 32,
              .file_bytes = 18,
              .values = 32,
              .sub = 32,
              .bits = 4,
              .d_bytes = 2,
              .offset = 8};
    case QuantType::q4_1:
      return {.file_values = 32,
              .file_bytes = 20,
              .values = 32,
              .sub = 32,
              .bits = 4,
              .d_bytes = 2,
              .second = true,
              .affine = true};
    case QuantType::q5_0:
      return {.file_values = 32,
              .file_bytes = 22,
              .values = 32,
              .sub = 32,
              .bits = 5,
              .d_bytes = 2,
              .offset = 16};
    case QuantType::q5_1:
      return {.file_values = 32,
              .file_bytes = 24,
              .values = 32,
              .sub = 32,
              .bits = 5,
              .d_bytes = 2,
              .second = true,
              .affine = true};
    case QuantType::q8_0:
      return {
          .file_values = 32, .file_bytes = 34, .values = 32, .sub = 32, .bits = 8, .d_bytes = 2};
    case QuantType::q2_k:
      return {.file_values = 256,
              .file_bytes = 84,
              .values = 256,
              .sub = 16,
              .bits = 2,
              .d_bytes = 2,
              .second = true,
              .scales = true,
              .affine = true};
    case QuantType::q3_k:
      return {.file_values = 256,
              .file_bytes = 110,
              .values = 256,
              .sub = 16,
              .bits = 3,
              .d_bytes = 2,
              .scales = true,
              .offset = 4};
    case QuantType::q4_k:
      return {.file_values = 256,
              .file_bytes = 144,
              .values = 256,
              .sub = 32,
              .bits = 4,
              .d_bytes = 2,
              .second = true,
              .scales = true,
              .mins = true,
              .affine = true};
    case QuantType::q5_k:
      return {.file_values = 256,
              .file_bytes = 176,
              .values = 256,
              .sub = 32,
              .bits = 5,
              .d_bytes = 2,
              .second = true,
              .scales = true,
              .mins = true,
              .affine = true};
    case QuantType::q6_k:
      return {.file_values = 256,
              .file_bytes = 210,
              .values = 256,
              .sub = 16,
              .bits = 6,
              .d_bytes = 2,
              .scales = true,
              .offset = 32};
    case QuantType::iq4_nl:
      return {
          .file_values = 32, .file_bytes = 18, .values = 32, .sub = 32, .bits = 4, .d_bytes = 2};
    case QuantType::iq4_xs:
      return {.file_values = 256,
              .file_bytes = 136,
              .values = 256,
              .sub = 32,
              .bits = 4,
              .d_bytes = 2,
              .scales = true};
    case QuantType::mxfp4:
      return {
          .file_values = 32, .file_bytes = 17, .values = 32, .sub = 32, .bits = 4, .d_bytes = 1};
  }
  return {};
}

}  // namespace quern::cpu
