#include "templates/cuda/flatten.cuh"

namespace quern::spec {
constexpr FlattenSpec quern_spec = {
    .width = 4096,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
