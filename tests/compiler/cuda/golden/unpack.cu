#include "templates/cuda/unpack.cuh"

namespace quern::spec {
constexpr UnpackSpec quern_spec = {
    .segments = {{.type = QuantType::q4_k, .rows = 4096}, {.type = QuantType::q4_k, .rows = 1024}, {.type = QuantType::q6_k, .rows = 1024}, {.type = QuantType::f32, .rows = 0}},
    .n_segments = 3,
    .k = 4096,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
