#include "templates/cuda/finish.cuh"

namespace quern::spec {
constexpr FinishSpec quern_spec = {
    .rows = {28672, 0, 0, 0},
    .n_segments = 1,
    .epilogue = Epilogue::swiglu,
    .bias = 0,
    .softcap = 0.0f,
};
}  // namespace quern::spec

using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;

extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)
quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {
  QuernKernel::run(args);
}
