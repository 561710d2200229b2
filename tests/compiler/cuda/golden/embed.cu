#include "templates/cuda/embed.cuh"

namespace quern::spec {
constexpr EmbedSpec quern_spec = {
    .type = QuantType::q4_k,
    .width = 4096,
    .scale = 1.0f,
    .tier = Tier::mma,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
