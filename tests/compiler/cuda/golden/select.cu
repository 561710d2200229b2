#include "templates/cuda/select.cuh"

namespace quern::spec {
constexpr SelectSpec quern_spec = {
    .vocabulary = 128256,
    .count = 256,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
