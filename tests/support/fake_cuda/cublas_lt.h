#pragma once

#include <cstdint>

// What the stand-in for cuBLASLt exports for tests, beside the library's own functions.

/// One product that it was asked for: C[m][n] = alpha * A B^T + beta * added.
struct FakeMatmul {
  uint32_t m, n, k;
  float alpha, beta;
  const void *a, *b, *added, *c;
};

extern "C" {
/// Copies the first `most` products since the reset; returns how many there are.
uint64_t fake_cublas_lt_matmuls(FakeMatmul* out, uint64_t most);
/// Forgets them; the product with number `fail` from now on fails (-1: none).
void fake_cublas_lt_reset(int64_t fail);
/// Objects that were made and not destroyed.
int64_t fake_cublas_lt_live();
}
