#pragma once

#include "templates/cuda/attention/decode.cuh"
#include "templates/cuda/attention/prefill.cuh"
#include "templates/cuda/attention/wave.cuh"
#include "templates/cuda/ptx/dependency.cuh"

namespace quern::cuda {

/// Entry of attention: the path and `s.decode` choose the kernel; flash prefill and flash decode make the same bits, wave has one
/// kernel for both.
template <spec::AttentionSpec s>
struct Kernel {
  static constexpr bool wave = s.path == spec::AttentionPath::wave, decode = s.decode != 0;
  static constexpr u32 threads = wave ? 256 : decode ? 128 : spec::attention_prefill_warps(s) * 32, min_blocks = 1;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if constexpr (decode) {
      ptx::let_next_launch_begin();  // it waits for the one before itself
    } else {
      ptx::follow_last_launch();
    }
    if constexpr (wave) {
      AttentionWave<s>::run(args, shared);
    } else if constexpr (decode) {
      AttentionDecode<s>::run(args, shared);
    } else {
      AttentionPrefill<s>::run(args, shared);
    }
  }
};

}  // namespace quern::cuda
