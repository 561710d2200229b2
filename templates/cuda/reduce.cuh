#pragma once

#include "templates/spec/types.h"

// Sums whose order is fixed by element index (DESIGN section 4, rule 4), whatever block runs them.

namespace quern::cuda {

using spec::u32;

/// Sum over the 32 values of a warp: the tree that halves by 16, 8, 4, 2, 1. Every lane gets it.
__device__ __forceinline__ float warp_tree_sum(float v) {
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

/// Sum over a block of 256 threads: the tree over each 32, then over the eight results. Every thread gets it. `shared` holds 8
/// floats. With v the chain of the elements i, i + 256, ... ascending, the order is fixed by element index.
__device__ __forceinline__ float block_tree_sum_256(float v, float* shared) {
  v = warp_tree_sum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float total = shared[threadIdx.x % 8];
#pragma unroll
  for (u32 step = 4; step > 0; step /= 2) total = __fadd_rn(total, __shfl_xor_sync(~0u, total, step));
  return total;
}

}  // namespace quern::cuda
