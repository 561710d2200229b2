#include "tools/device_choice.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "runtime/cuda/device.h"
#include "runtime/memory.h"

namespace quern::tools {
namespace {

Target target_of_gpu(const cuda::Device& device) {
  return cuda::make_target(cuda::target_for_device(device.compute_capability()).name);
}

/// The plan for a GPU that is there: with what it has free.
Plan plan_on(const ModelGraph& graph, PlanOptions options, const cuda::Device& device) {
  options.free_bytes = device.memory().free_bytes;
  return make_plan(graph, options, target_of_gpu(device));
}

/// Why the device cannot run a plan for it, or empty.
std::string unfit(const cuda::Device& device, const Plan& plan) {
  const bool keyless = std::ranges::any_of(plan.kernels, [](const PlanKernel& kernel) {
    return kernel.key_digest.empty() && !is_library(kernel.spec);
  });
  if (keyless) return "NVRTC, which compiles its kernels, was not found: see quern doctor";
  const uint64_t needed = plan.capacity.total(), free = device.memory().free_bytes;
  if (needed > free) {
    return fmt::format("it needs {} and {} are free", readable_bytes(needed), readable_bytes(free));
  }
  return {};
}

/// The plan for the first GPU where that can run it.
std::optional<Plan> gpu_plan(const ModelGraph& graph, const PlanOptions& options) {
  if (const std::string problem = cuda::Driver::problem(); !problem.empty()) {
    spdlog::info("runs on the CPU: {}", problem);
    return std::nullopt;
  }
  std::string reason;
  try {
    const std::shared_ptr<cuda::Device> device = cuda::Device::open(0);
    Plan plan = plan_on(graph, options, *device);
    reason = unfit(*device, plan);
    if (reason.empty()) return plan;
  } catch (const Error& error) {
    reason = error.what();
  }
  spdlog::warn("runs on the CPU, not on the GPU: {}", reason);
  return std::nullopt;
}

}  // namespace

int device_index(std::string_view device) {
  if (!device.starts_with("cuda:")) return 0;
  const std::string_view number = device.substr(5);
  int index = 0;
  const auto [stop, code] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (code != std::errc{} || stop != number.data() + number.size()) {
    throw Error(ErrorKind::usage, device, "is no device", "use auto, cpu or cuda[:I]");
  }
  return index;
}

std::optional<Target> named_target(std::string_view name) {
  if (name == "auto") return std::nullopt;
  if (name == "cuda" || name.starts_with("cuda:")) {
    return target_of_gpu(*cuda::Device::open(device_index(name)));
  }
  if (name.starts_with("sm_")) return cuda::make_target(name);
  return cpu::resolve_target(name);
}

Plan plan_for(const ModelGraph& graph, const PlanOptions& options,
              const std::optional<Target>& target) {
  if (target && options.device.starts_with("cuda") && options.numerics == Numerics::fast) {
    const auto device = cuda::Device::open(device_index(options.device));
    if (target_of_gpu(*device) == *target) return plan_on(graph, options, *device);
  }
  if (target) return make_plan(graph, options, *target);
  if (std::optional<Plan> plan = gpu_plan(graph, options)) return *std::move(plan);
  return make_plan(graph, options, cpu::resolve_target("native"));
}

}  // namespace quern::tools
