#pragma once

#include "templates/spec/types.h"

namespace quern::ptx {

using spec::u32;

/// Waits for `threads` threads of the block at barrier `id` (0 is __syncthreads'). Warps may come from different places of the
/// code, hence not `bar.sync`: that one is aligned.
template <u32 id, u32 threads>
__device__ __forceinline__ void named_barrier() {
  asm volatile("barrier.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

__device__ __forceinline__ void mbarrier_init(u32 shared, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 shared) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared) : "memory");
}
/// Arrives for a warp and all that its lanes did, at a barrier that counts warps.
__device__ __forceinline__ void mbarrier_arrive_warp(u32 shared, u32 lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared);
}
/// Waits for the phase of this parity to complete; where the hardware can, asleep.
__device__ __forceinline__ void mbarrier_wait(u32 shared, u32 parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra WAIT;\n}" ::"r"(shared),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n@!done bra WAIT;\n}" ::"r"(shared),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace quern::ptx
