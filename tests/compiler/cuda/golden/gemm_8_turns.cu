#include "templates/cuda/gemm.cuh"

namespace quern::spec {
constexpr GemmSpec quern_spec = {
    .segments = {{.type = QuantType::q4_k, .rows = 4096}, {.type = QuantType::q4_k, .rows = 1024}, {.type = QuantType::q6_k, .rows = 1024}, {.type = QuantType::f32, .rows = 0}},
    .n_segments = 3,
    .k = 4096,
    .epilogue = Epilogue::store,
    .bias = 0,
    .softcap = 0.0f,
    .tile_tokens = 8,
    .tile_cells = 2,
    .k_block = 256,
    .gemv_max_tokens = 2,
    .tier = Tier::mma,
    .stages = 2,
    .shared_groups = 2,
    .sharers = 4,
    .turn_slabs = 4,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
