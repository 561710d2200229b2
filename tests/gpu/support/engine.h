#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compiler/compile_kernel.h"
#include "compiler/cuda/cuda_compiler.h"
#include "runtime/cuda/device.h"
#include "tests/gpu/support/need_gpu.h"
#include "tests/runtime/model_support.h"

// Loads models into engines on the machine's GPU.
namespace quern::test {

inline Target gpu_target() {
  return cuda::make_target(cuda::target_for_device(gpu()->compute_capability()).name);
}

inline PlanOptions gpu_options(uint32_t context, uint32_t chunk = 512, std::string kv = "auto",
                               std::string attention = "auto") {
  PlanOptions options = test_options(context, chunk);
  options.device = "cuda";
  options.kv = std::move(kv);
  options.attention = std::move(attention);
  return options;
}

/// Kernels are compiled strictly: one that spills registers fails the test.
inline std::shared_ptr<Engine> load_on_gpu(const std::filesystem::path& path,
                                           const PlanOptions& options, Progress progress = {}) {
  gguf::File file = gguf::File::open(path);
  Plan plan = make_plan(build_graph(file), options, gpu_target());
  EngineOptions engine_options;
  engine_options.progress = std::move(progress);
  return Engine::load(
      std::move(file), std::move(plan), test_store(),
      [](const spec::AnySpec& spec, const Target& target) {
        return compile_kernel(spec, target, /*strict=*/true);
      },
      engine_options);
}

/// How often the last feed launched what is called `name`.
inline uint32_t launches(const Session& session, std::string_view name) {
  for (const auto& [launch, count] : session.last_launches()) {
    if (launch == name) return count;
  }
  return 0;
}

}  // namespace quern::test
