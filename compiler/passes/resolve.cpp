#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::passes {

namespace {

constexpr uint32_t default_context = 4096;
constexpr uint32_t default_chunk = 512;
constexpr uint32_t max_chunk = 16384;

[[noreturn]] void refuse(std::string_view option, const std::string& reason,
                         std::string_view remedy) {
  throw Error(ErrorKind::usage, option, reason, remedy);
}

std::string resolve_device(const std::string& device, const Target& target) {
  if (device == "cuda" || device.starts_with("cuda:") || target.kind == "cuda") {
    refuse("--device " + (device.starts_with("cuda") ? device : std::string("cuda")),
           "this build has no GPU back end yet", "use --device cpu");
  }
  if (device != "auto" && device != "cpu") {
    refuse("--device " + device, "no such device", "use auto, cpu or cuda[:I]");
  }
  if (target.kind != "cpu") {
    refuse("--target " + target.name, fmt::format("unknown kind of target \"{}\"", target.kind),
           "use --target cpu");
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

uint32_t resolve_chunk(uint32_t asked, uint32_t context, std::vector<Decision>& decisions) {
  if (asked > max_chunk) {
    refuse(fmt::format("--chunk {}", asked), fmt::format("the largest chunk is {}", max_chunk),
           fmt::format("use --chunk {} or less", max_chunk));
  }
  const uint32_t wanted = asked == 0 ? default_chunk : asked;
  const uint32_t chunk = std::min(wanted, context);
  if (chunk != wanted) {
    decisions.push_back({"chunk", fmt::format("{} tokens", chunk),
                         fmt::format("no chunk is longer than the context; {} were asked for or "
                                     "are the default",
                                     wanted)});
  }
  return chunk;
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

std::string resolve_kv(const std::string& asked, std::vector<Decision>& decisions) {
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

}  // namespace

PlanOptions resolve(const PlanOptions& options, const ModelGraph& graph, const Target& target,
                    std::vector<Decision>& decisions) {
  PlanOptions resolved = options;
  resolved.device = resolve_device(options.device, target);
  resolved.context = resolve_context(options.context, graph.context_length, decisions);
  resolved.chunk = resolve_chunk(options.chunk, resolved.context, decisions);
  resolved.attention = resolve_attention(options.attention, decisions);
  resolved.kv = resolve_kv(options.kv, decisions);
  if (options.gpu_layers > 0) {
    refuse(fmt::format("--gpu-layers {}", options.gpu_layers),
           "a plan for the CPU has no layer on a GPU", "leave the option out, or use 0");
  }
  if (options.gpu_layers < -1) {
    refuse(fmt::format("--gpu-layers {}", options.gpu_layers), "not a number of layers",
           "use auto or 0");
  }
  resolved.gpu_layers = 0;
  if (options.numerics == Numerics::fast) {
    decisions.push_back({"numerics", "fast, with no step relaxed",
                         "the CPU back end has no path that gives up exactness"});
  }
  return resolved;
}

}  // namespace quern::passes
