#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compiler/compile_kernel.h"
#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::passes {

namespace {

constexpr uint32_t default_context = 4096;
constexpr uint32_t default_chunk = 512, default_gpu_chunk = 2048;
constexpr uint32_t max_chunk = 16384;

[[noreturn]] void refuse(std::string_view option, const std::string& reason,
                         std::string_view remedy) {
  throw Error(ErrorKind::usage, option, reason, remedy);
}

std::string resolve_device(const std::string& device, const Target& target) {
  const bool cuda_device = device == "cuda" || device.starts_with("cuda:");
  if (!cuda_device && device != "auto" && device != "cpu") {
    refuse("--device " + device, "no such device", "use auto, cpu or cuda[:I]");
  }
  if (is_cuda(target)) {
    if (device == "cpu") {
      refuse("--device cpu", fmt::format("the target {} is a GPU", target.name),
             "use --device cuda, or a CPU target");
    }
    return cuda_device ? device : "cuda";
  }
  if (cuda_device) {
    refuse("--device " + device, fmt::format("the target {} is a CPU", target.name),
           "use --device cpu, or a GPU target such as sm_90a");
  }
  return "cpu";
}

uint32_t resolve_context(uint32_t asked, uint32_t trained, std::vector<Decision>& decisions) {
  if (asked == 0) {
    const uint32_t context = trained == 0 ? default_context : std::min(trained, default_context);
    decisions.push_back(
        {"context", fmt::format("{} tokens", context),
         fmt::format("the smaller of {} and the model's {}", default_context, trained)});
    return context;
  }
  if (trained != 0 && asked > trained) {
    refuse(fmt::format("--ctx {}", asked), fmt::format("the model's context_length is {}", trained),
           fmt::format("use --ctx {} or less", trained));
  }
  return asked;
}

uint32_t resolve_chunk(uint32_t asked, uint32_t context, bool gpu,
                       std::vector<Decision>& decisions) {
  if (asked > max_chunk) {
    refuse(fmt::format("--chunk {}", asked), fmt::format("the largest chunk is {}", max_chunk),
           fmt::format("use --chunk {} or less", max_chunk));
  }
  const uint32_t fallback = gpu ? default_gpu_chunk : default_chunk;
  const uint32_t wanted = asked == 0 ? fallback : asked;
  const uint32_t chunk = std::min(wanted, context);
  if (chunk != wanted) {
    decisions.push_back({"chunk", fmt::format("{} tokens", chunk),
                         fmt::format("no chunk is longer than the context; {} were asked for or "
                                     "are the default",
                                     wanted)});
  }
  return chunk;
}

std::string resolve_kv(const std::string& asked, bool gpu, std::vector<Decision>& decisions) {
  if (asked == "auto" && gpu) {
    decisions.push_back({"kv", "f16", "the default on the GPU: its kernels multiply in f16"});
    return "f16";
  }
  if (asked == "auto") {
    decisions.push_back({"kv", "f32", "the default on the CPU: its kernels compute in f32"});
    return "f32";
  }
  spec::KvType type{};
  if (!spec_value(asked, type)) {
    refuse("--kv " + asked, "no such cache type", "use f16, bf16, q8_0 or f32");
  }
  return asked;
}

std::string resolve_attention(const std::string& asked, std::vector<Decision>& decisions) {
  if (asked == "auto") {
    decisions.push_back({"attention", "flash", "the default: scores are never stored"});
    return "flash";
  }
  spec::AttentionPath path{};
  if (!spec_value(asked, path)) {
    refuse("--attention " + asked, "no such path", "use auto, flash or wave");
  }
  return asked;
}

/// The path of all layers of a GPU plan: flash where its kernels can run every one of them.
std::string resolve_gpu_attention(const std::string& asked, const std::string& kv,
                                  const ModelGraph& graph, std::vector<Decision>& decisions) {
  spec::KvType type{};
  spec_value(kv, type);
  std::string why;
  const bool flash = std::ranges::all_of(graph.nodes, [&](const Node& node) {
    const auto* attention = std::get_if<Attention>(&node.op);
    return attention == nullptr || gpu_flash_runs(*attention, type, &why);
  });
  if (asked == "auto" && !flash) {
    decisions.push_back({"attention", "wave", why});
    return "wave";
  }
  if (asked == "flash" && !flash) {
    refuse(
        "--attention flash", why,
        type == spec::KvType::f32 ? "use --attention wave, or --kv f16" : "use --attention wave");
  }
  return resolve_attention(asked, decisions);
}

int32_t resolve_gpu_layers(int32_t asked, uint32_t layers, bool gpu) {
  const std::string option = fmt::format("--gpu-layers {}", asked);
  if (asked < -1) refuse(option, "not a number of layers", "use auto or 0");
  if (!gpu) {
    if (asked <= 0) return 0;
    refuse(option, "a plan for the CPU has no layer on a GPU", "leave the option out, or use 0");
  }
  if (asked != -1 && static_cast<uint32_t>(asked) < layers) {
    refuse(option, fmt::format("the model has {} layers, and they cannot be split yet", layers),
           "leave the option out, or use --device cpu");
  }
  return static_cast<int32_t>(layers);
}

}  // namespace

PlanOptions resolve(const PlanOptions& options, const ModelGraph& graph, const Target& target,
                    std::vector<Decision>& decisions) {
  const bool gpu = is_cuda(target);
  PlanOptions resolved = options;
  resolved.free_bytes = 0;
  resolved.device = resolve_device(options.device, target);
  if (gpu) require_gpu_kernels(graph, target);
  resolved.context = resolve_context(options.context, graph.context_length, decisions);
  resolved.chunk = resolve_chunk(options.chunk, resolved.context, gpu, decisions);
  resolved.kv = resolve_kv(options.kv, gpu, decisions);
  resolved.attention = gpu ? resolve_gpu_attention(options.attention, resolved.kv, graph, decisions)
                           : resolve_attention(options.attention, decisions);
  resolved.gpu_layers = resolve_gpu_layers(options.gpu_layers, graph.n_layers, gpu);
  if (options.numerics == Numerics::fast && !gpu) {
    decisions.push_back({"numerics", "fast, with no step relaxed",
                         "the CPU back end has no path that gives up exactness"});
  }
  return resolved;
}

}  // namespace quern::passes
