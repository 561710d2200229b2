#include "templates/cuda/norm.cuh"

namespace quern::spec {
constexpr NormSpec quern_spec = {
    .width = 4096,
    .group = 4096,
    .eps = 1e-05f,
    .residual = 0,
    .gate = 0,
    .z_row_width = 0,
    .z_offset = 0,
    .tier = Tier::mma,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
