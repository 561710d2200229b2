#pragma once

#include "templates/spec/types.h"

namespace quern::ptx {

using spec::u32;

/// c += a b for one m16n8k16 piece: f16 operands, f32 sums. Fragments as in the PTX ISA: a0 = (row g, k 2t..2t+1), a1 = (row
/// g + 8, same k), a2, a3 = k + 8; b0 = (k 2t..2t+1, column g), b1 = k + 8; c0, c1 = (row g, columns 2t, 2t+1), c2, c3 = row g + 8.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace quern::ptx
