// Loading a plan for a GPU: the device is checked before anything long begins.

#include <fmt/format.h>

#include <chrono>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/kernels.h"
#include "runtime/memory.h"

namespace quern {
namespace {

/// Kernels run on later cards of the same major version, except those of targets that name a
/// version's own instructions ("sm_90a").
void check_gpu_target(const Target& target, const cuda::Device& device) {
  const cuda::TargetTraits& traits = cuda::target_traits(target.name);
  const uint32_t capability = device.compute_capability();
  const bool exact = target.name.back() == 'a';
  const bool runs = exact ? capability == traits.compute_capability
                          : capability / 10 == traits.compute_capability / 10 &&
                                capability >= traits.compute_capability;
  if (runs) return;
  throw Error(
      ErrorKind::failed, fmt::format("target {}", target.name),
      fmt::format("{} has compute capability {}.{}", device.name(), capability / 10,
                  capability % 10),
      fmt::format("compile the plan with --target {}", cuda::target_for_device(capability).name));
}

void check_gpu_memory(const Plan& plan, const cuda::Device& device) {
  const uint64_t needed = plan.capacity.total();
  const cuda::Device::Memory memory = device.memory();
  if (needed <= memory.free_bytes) return;
  const bool others = needed <= memory.total_bytes;
  throw Error(
      ErrorKind::does_not_fit, plan.model_name.empty() ? plan.architecture : plan.model_name,
      fmt::format("it needs {} and {} has {} free of {}", readable_bytes(needed), device.name(),
                  readable_bytes(memory.free_bytes), readable_bytes(memory.total_bytes)),
      others ? "end what else runs on the GPU, or take a smaller --ctx or --chunk"
             : "take a smaller --ctx, --chunk, --kv or model, or --device cpu");
}

}  // namespace

std::unique_ptr<Backend> load_gpu_backend(const gguf::File& file, const Plan& plan,
                                          KernelStore& store, const KernelCompiler& compile,
                                          const EngineOptions& options, LoadStats& stats) {
  std::shared_ptr<cuda::Device> device = cuda::Device::open(options.device);
  check_gpu_target(plan.target, *device);
  check_gpu_memory(plan, *device);
  cuda::check_library(plan);
  cpu::ThreadPool pool(options.threads);
  std::vector<CompiledKernel> kernels =
      fetch_kernels(plan, store, compile, pool.size(), options.progress, stats);
  auto backend = std::make_unique<cuda::GpuBackend>(file, plan, std::move(kernels),
                                                    std::move(device), pool, options.progress);
  stats.weight_bytes = backend->weight_bytes();
  return backend;
}

}  // namespace quern
