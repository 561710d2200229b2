// The shapes that kernels are launched with on each target.

#include "runtime/cuda/launch.h"

#include <gtest/gtest.h>

#include "compiler/cuda/cuda_compiler.h"
#include "compiler/cuda/gemm_choice.h"

namespace quern::test {
namespace {

/// A block may have no more shared memory than its target gives one. Of blocks that share row
/// groups no two fit on a multiprocessor where launches begin early; it has 1 KiB more than a block
/// may ask for, and keeps 1 KiB of each block's.
TEST(Launch, decode_blocks_fit_their_target_and_share_no_multiprocessor) {
  size_t sharing = 0;
  for (const cuda::TargetTraits& target : cuda::target_table()) {
    Plan plan;
    plan.target = cuda::make_target(target.name);
    for (const uint32_t rows : {64u, 960u, 4096u, 6144u, 8192u, 10240u, 12288u, 28672u, 128256u}) {
      for (const uint32_t k : {512u, 4096u, 14336u, 28672u}) {
        const spec::GemmSpec s =
            cuda::choose_gemm_tile({.segments = {{spec::QuantType::q6_k, rows}},
                                    .n_segments = 1,
                                    .k = k,
                                    .tier = spec::Tier::mma},
                                   8, target);
        const uint32_t bytes = cuda::launch_shape_of(s, 1, plan).shared_bytes;
        EXPECT_LE(bytes, target.shared_bytes_block) << target.name << ", " << rows << " x " << k;
        EXPECT_GE(bytes, spec::launch_shape(s, 1).shared_bytes);
        if (s.shared_groups == 0 || target.compute_capability < 90) continue;
        ++sharing;
        EXPECT_GT(2 * (bytes + 1024), target.shared_bytes_block + 1024)
            << target.name << ", " << rows << " x " << k;
      }
    }
  }
  EXPECT_GT(sharing, 20u);
}

}  // namespace
}  // namespace quern::test
