#include "templates/cuda/repack.cuh"

namespace quern::spec {
constexpr RepackSpec quern_spec = {
    .type = QuantType::q6_k,
    .k = 4096,
    .tier = Tier::mma,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
