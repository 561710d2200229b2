#pragma once

#include "templates/cuda/attention/decode.cuh"
#include "templates/cuda/attention/prefill.cuh"

namespace quern::cuda {

/// Entry of flash attention: `s.decode` chooses the kernel; both make the same bits.
template <spec::AttentionSpec s>
struct Kernel {
  static constexpr u32 threads = s.decode != 0 ? AttentionDecode<s>::threads : AttentionPrefill<s>::threads, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if constexpr (s.decode != 0) {
      AttentionDecode<s>::run(args, shared);
    } else {
      AttentionPrefill<s>::run(args, shared);
    }
  }
};

}  // namespace quern::cuda
