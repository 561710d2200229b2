#pragma once

#include "templates/cpu/vec.h"

namespace quern::cpu {

/// Transposes 16 x 16 bytes: four rounds that interleave vector i with vector i + 8.
QUERN_INLINE void transpose(u8x16 (&m)[16]) {
#pragma clang loop unroll(full)
  for (u32 round = 0; round < 4; ++round) {
    u8x16 next[16];
#pragma clang loop unroll(full)
    for (u32 i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shufflevector(m[i], m[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                            21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(m[i], m[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                                28, 13, 29, 14, 30, 15, 31);
    }
#pragma clang loop unroll(full)
    for (u32 i = 0; i < 16; ++i) m[i] = next[i];
  }
}

}  // namespace quern::cpu
