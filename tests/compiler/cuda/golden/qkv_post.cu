#include "templates/cuda/qkv_post.cuh"

namespace quern::spec {
constexpr QkvPostSpec quern_spec = {
    .n_head = 32,
    .n_head_kv = 8,
    .head_dim = 128,
    .value_dim = 128,
    .row_width = 6144,
    .q_offset = 0,
    .k_offset = 4096,
    .v_offset = 5120,
    .qk_norm = QkNorm::none,
    .eps = 0.0f,
    .rope = RopePairing::norm,
    .n_rot = 128,
    .kv = KvType::f16,
    .tier = Tier::mma,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
