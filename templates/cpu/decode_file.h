#pragma once

// Blocks of quants as the file has them (FACTS section A), taken apart: scales, sub-scales, codes.
// What the parts mean is cell_format.h's business; the arithmetic is decode.h's.

#include "templates/cpu/cell_format.h"
#include "templates/cpu/vec.h"

namespace quern::cpu {

/// The parts of one block. Codes are unsigned; q8_0's are its signed bytes.
struct BlockParts {
  u16 d = 0, m = 0;
  u8 scales[16] = {};  ///< Signed bytes, their offset already taken off.
  u8 mins[16] = {};
  u8 codes[256] = {};
};

QUERN_INLINE u16 load_u16(const u8* p) {
  return static_cast<u16>(p[0] | (p[1] << 8));
}

/// 32 four-bit codes in 16 bytes: low nibbles first, then the high ones.
QUERN_INLINE void split_nibbles(const u8* p, u8* codes, u32 n) {
  for (u32 j = 0; j < n; ++j) {
    codes[j] = p[j] & 15;
    codes[j + n] = p[j] >> 4;
  }
}

/// The 6-bit scales and minima of q4_k and q5_k.
QUERN_INLINE void split_scales_k4(const u8* b, BlockParts& parts) {
  for (u32 j = 0; j < 4; ++j) {
    parts.scales[j] = b[j] & 63;
    parts.mins[j] = b[j + 4] & 63;
    parts.scales[j + 4] = static_cast<u8>((b[j + 8] & 15) | ((b[j] >> 6) << 4));
    parts.mins[j + 4] = static_cast<u8>((b[j + 8] >> 4) | ((b[j + 4] >> 6) << 4));
  }
}

template <QuantType T>
QUERN_INLINE void split_codes_32(const u8* p, BlockParts& parts) {
  constexpr bool high = T == QuantType::q5_0 || T == QuantType::q5_1;
  constexpr bool second = T == QuantType::q4_1 || T == QuantType::q5_1;
  constexpr u32 start = T == QuantType::mxfp4 ? 1 : second ? 4 : 2;
  parts.d = T == QuantType::mxfp4 ? p[0] : load_u16(p);
  if (second) parts.m = load_u16(p + 2);
  if (T == QuantType::q8_0) {
    for (u32 j = 0; j < 32; ++j) parts.codes[j] = p[start + j];
    return;
  }
  split_nibbles(p + start + (high ? 4 : 0), parts.codes, 16);
  if (high) {
    for (u32 j = 0; j < 32; ++j) {
      parts.codes[j] = static_cast<u8>(parts.codes[j] | (((p[start + j / 8] >> (j % 8)) & 1) << 4));
    }
  }
}

QUERN_INLINE void split_q2_k(const u8* p, BlockParts& parts) {
  parts.d = load_u16(p + 80);
  parts.m = load_u16(p + 82);
  for (u32 s = 0; s < 16; ++s) parts.scales[s] = p[s];
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < 8; ++g) {
    for (u32 l = 0; l < 32; ++l)
      parts.codes[32 * g + l] = (p[16 + 32 * (g / 4) + l] >> (2 * (g % 4))) & 3;
  }
}

QUERN_INLINE void split_q3_k(const u8* p, BlockParts& parts) {
  parts.d = load_u16(p + 108);
  const u8* scales = p + 96;
  for (u32 s = 0; s < 16; ++s) {
    const u32 low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    const u32 high = (scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    parts.scales[s] = static_cast<u8>((low | (high << 4)) - 32);
  }
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < 8; ++g) {
    for (u32 l = 0; l < 32; ++l) {
      const u32 low = (p[32 + 32 * (g / 4) + l] >> (2 * (g % 4))) & 3;
      parts.codes[32 * g + l] = static_cast<u8>(low | (((p[l] >> g) & 1) << 2));
    }
  }
}

template <QuantType T>
QUERN_INLINE void split_q4_k_q5_k(const u8* p, BlockParts& parts) {
  constexpr bool high = T == QuantType::q5_k;
  parts.d = load_u16(p);
  parts.m = load_u16(p + 2);
  split_scales_k4(p + 4, parts);
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < 4; ++g)
    split_nibbles(p + (high ? 48 : 16) + 32 * g, parts.codes + 64 * g, 32);
  if (high) {
#pragma clang loop unroll(disable)
    for (u32 g = 0; g < 8; ++g) {
      for (u32 l = 0; l < 32; ++l) {
        parts.codes[32 * g + l] =
            static_cast<u8>(parts.codes[32 * g + l] | (((p[16 + l] >> g) & 1) << 4));
      }
    }
  }
}

QUERN_INLINE void split_q6_k(const u8* p, BlockParts& parts) {
  parts.d = load_u16(p + 208);
  for (u32 s = 0; s < 16; ++s) parts.scales[s] = p[192 + s];
#pragma clang loop unroll(disable)
  for (u32 h = 0; h < 2; ++h) {
    split_nibbles(p + 64 * h, parts.codes + 128 * h, 64);
#pragma clang loop unroll(disable)
    for (u32 g = 0; g < 4; ++g) {
      for (u32 l = 0; l < 32; ++l) {
        u8& code = parts.codes[128 * h + 32 * g + l];
        code = static_cast<u8>(code | (((p[128 + 32 * h + l] >> (2 * g)) & 3) << 4));
      }
    }
  }
}

QUERN_INLINE void split_iq4_xs(const u8* p, BlockParts& parts) {
  parts.d = load_u16(p);
  const u32 high = load_u16(p + 2);
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < 8; ++g) {
    const u32 low = (p[4 + g / 2] >> (4 * (g % 2))) & 15;
    parts.scales[g] = static_cast<u8>((low | (((high >> (2 * g)) & 3) << 4)) - 32);
    split_nibbles(p + 8 + 16 * g, parts.codes + 32 * g, 16);
  }
}

/// Takes a block of a quantised type apart.
template <QuantType T>
QUERN_INLINE void split_block(const u8* p, BlockParts& parts) {
  if constexpr (T == QuantType::q2_k) {
    split_q2_k(p, parts);
  } else if constexpr (T == QuantType::q3_k) {
    split_q3_k(p, parts);
  } else if constexpr (T == QuantType::q4_k || T == QuantType::q5_k) {
    split_q4_k_q5_k<T>(p, parts);
  } else if constexpr (T == QuantType::q6_k) {
    split_q6_k(p, parts);
  } else if constexpr (T == QuantType::iq4_xs) {
    split_iq4_xs(p, parts);
  } else {
    split_codes_32<T>(p, parts);
  }
}

}  // namespace quern::cpu
