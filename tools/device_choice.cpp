#include "tools/device_choice.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"
#include "compiler/plan.h"
#include "models/error.h"
#include "runtime/cuda/device.h"
#include "runtime/memory.h"

namespace quern::tools {
namespace {

Target target_of_gpu(const cuda::Device& device) {
  return cuda::make_target(cuda::target_for_device(device.compute_capability()).name);
}

/// Why the GPU cannot run this model, or empty.
std::string unfit(const cuda::Device& device, const ModelGraph& graph, const PlanOptions& options) {
  const Plan plan = make_plan(graph, options, target_of_gpu(device));
  const bool keyless = std::ranges::any_of(
      plan.kernels, [](const PlanKernel& kernel) { return kernel.key_digest.empty(); });
  if (keyless) return "NVRTC, which compiles its kernels, was not found: see quern doctor";
  const uint64_t needed = plan.capacity.total(), free = device.memory().free_bytes;
  if (needed > free) {
    return fmt::format("it needs {} and {} are free", readable_bytes(needed), readable_bytes(free));
  }
  return {};
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

Target target_of_device(std::string_view named) {
  if (named == "auto") return cpu::resolve_target("native");
  if (named == "cuda" || named.starts_with("cuda:")) {
    return target_of_gpu(*cuda::Device::open(device_index(named)));
  }
  if (named.starts_with("sm_")) return cuda::make_target(named);
  return cpu::resolve_target(named);
}

Target choose_target(const ModelGraph& graph, const PlanOptions& options, std::string_view named) {
  if (named != "auto") return target_of_device(named);
  Target cpu = cpu::resolve_target("native");
  if (const std::string problem = cuda::Driver::problem(); !problem.empty()) {
    spdlog::info("runs on the CPU: {}", problem);
    return cpu;
  }
  std::string reason;
  try {
    const std::shared_ptr<cuda::Device> device = cuda::Device::open(0);
    reason = unfit(*device, graph, options);
    if (reason.empty()) return target_of_gpu(*device);
  } catch (const Error& error) {
    reason = error.what();
  }
  spdlog::warn("runs on the CPU, not on the GPU: {}", reason);
  return cpu;
}

}  // namespace quern::tools
