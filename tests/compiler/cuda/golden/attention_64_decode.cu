#include "templates/cuda/attention.cuh"

namespace quern::spec {
constexpr AttentionSpec quern_spec = {
    .n_head = 32,
    .n_head_kv = 8,
    .head_dim = 64,
    .value_dim = 64,
    .q_row_width = 0,
    .q_offset = 0,
    .scale = 0.088388346f,
    .softcap = 0.0f,
    .window = 0,
    .gate = 0,
    .gate_row_width = 0,
    .gate_offset = 0,
    .path = AttentionPath::flash,
    .kv = KvType::f16,
    .block_keys = 128,
    .segment_keys = 1024,
    .tier = Tier::mma,
    .decode = 1,
    .warps = 0,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
