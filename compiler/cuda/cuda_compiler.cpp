#include "compiler/cuda/cuda_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "compiler/cuda/embedded_headers.h"
#include "compiler/cuda/nvrtc.h"
#include "models/error.h"
#include "models/sha256.h"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {
namespace {

std::vector<std::string> options(const Nvrtc& nvrtc, const Target& target) {
  std::vector<std::string> list = {
      "--gpu-architecture=" + target.name,
      "--std=c++20",
      "--fmad=false",  // DESIGN section 4, rule 4: fused multiply-adds are written out
      "--device-as-default-execution-space",
      "--ptxas-options=-v",
  };
  if (nvrtc.major() > 12 || nvrtc.minor() >= 9) list.emplace_back("--no-cache");
  return list;
}

std::vector<Nvrtc::Header> headers_of(std::string_view source) {
  std::vector<Nvrtc::Header> headers;
  const std::vector<std::string> closure = header_closure(source);
  for (const EmbeddedHeader& header : embedded_headers()) {
    if (std::binary_search(closure.begin(), closure.end(), header.name)) {
      headers.push_back({.name = header.name, .text = header.text});
    }
  }
  return headers;
}

Error compile_error(const spec::AnySpec& spec, const Target& target, const Nvrtc& nvrtc,
                    const Nvrtc::Result& result) {
  const std::string thing = fmt::format("{} kernel for {}", spec_family(spec), target.name);
  if (result.log.find("libnvrtc-builtins") != std::string::npos) {
    return {
        ErrorKind::failed, "NVRTC",
        fmt::format("{} cannot find its libnvrtc-builtins library", nvrtc.path().string()),
        "install both from the same CUDA version, in one folder, and put that on LD_LIBRARY_PATH"};
  }
  if (result.log.find("invalid value for --gpu-architecture") != std::string::npos ||
      result.problem.find("INVALID_OPTION") != std::string::npos) {
    return {ErrorKind::failed, thing,
            fmt::format("NVRTC {} does not know this target", nvrtc.version()),
            "use a newer CUDA toolkit (sm_120 needs 12.8)"};
  }
  std::string log = result.log.substr(0, 600);
  return {ErrorKind::failed, thing,
          fmt::format("NVRTC {} says {}: {}", nvrtc.version(), result.problem, log)};
}

Nvrtc::Result run_nvrtc(const spec::AnySpec& spec, const Target& target, bool want_ptx) {
  const Nvrtc& nvrtc = Nvrtc::get();
  const std::string source = emit_source(spec);
  Nvrtc::Result result = nvrtc.compile(source, std::string(spec_family(spec)) + ".cu",
                                       headers_of(source), options(nvrtc, target), want_ptx);
  // A failed compilation still answers a size of 0 with success, so all three are asked.
  const bool elf = result.cubin.size() > 4 && result.cubin[0] == std::byte{0x7f} &&
                   result.cubin[1] == std::byte{'E'};
  if (!result.ok || !elf) throw compile_error(spec, target, nvrtc, result);
  return result;
}

uint32_t number_before(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) return 0;
  size_t begin = at;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  uint32_t value = 0;
  std::from_chars(text.data() + begin, text.data() + at, value);
  return value;
}

}  // namespace

KernelKey kernel_key(const spec::AnySpec& spec, const Target& target) {
  const Nvrtc& nvrtc = Nvrtc::get();
  const std::string source = emit_source(spec);
  Sha256 headers;
  for (const std::string& name : header_closure(source)) {
    headers.update(std::as_bytes(std::span(name)));
    std::string_view text = header_text(name);
    headers.update(std::as_bytes(std::span(text)));
  }
  std::string all_options;
  for (const std::string& option : options(nvrtc, target)) all_options += option + " ";
  return {.fields = {
              {"schema", "quern-cuda-1"},
              {"family", std::string(spec_family(spec))},
              {"spec", spec_to_text(spec)},
              {"source", sha256_hex(std::as_bytes(std::span(source)))},
              {"headers", headers.hex()},
              {"options", all_options},
              {"target", target.kind + " " + target.name},
              {"compiler", "NVRTC " + nvrtc.version()},
          }};
}

Resources parse_resources(std::string_view log) {
  Resources r;
  r.registers = number_before(log, " registers");
  r.spill_store_bytes = number_before(log, " bytes spill stores");
  r.spill_load_bytes = number_before(log, " bytes spill loads");
  r.stack_bytes = number_before(log, " bytes stack frame");
  r.static_shared_bytes = number_before(log, " bytes smem");
  r.wgmma_serialized =
      log.find("(C751") != std::string_view::npos || log.find("C7510") != std::string_view::npos ||
      log.find("wgmma.mma_async instructions are serialized") != std::string_view::npos;
  return r;
}

uint32_t launch_shared_bytes(const spec::AnySpec& spec) {
  if (const auto* gemm = std::get_if<spec::GemmSpec>(&spec)) {
    return spec::launch_shape(*gemm, 1).shared_bytes;
  }
  const auto* attention = std::get_if<spec::AttentionSpec>(&spec);
  if (attention == nullptr) return 0;
  if (attention->path == spec::AttentionPath::wave) {
    return spec::attention_wave_shape(*attention, 1, 1).shared_bytes;
  }
  return attention->decode != 0 ? spec::attention_decode_shape(*attention, 1).shared_bytes
                                : spec::attention_prefill_shape(*attention, 1).shared_bytes;
}

CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target, bool strict) {
  const auto begin = std::chrono::steady_clock::now();
  Nvrtc::Result result = run_nvrtc(spec, target, false);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const Resources r = parse_resources(result.log);
  if (strict && (r.spill_store_bytes != 0 || r.spill_load_bytes != 0 || r.wgmma_serialized)) {
    throw Error(ErrorKind::failed, fmt::format("{} kernel for {}", spec_family(spec), target.name),
                r.wgmma_serialized
                    ? "the compiler serialised its wgmma instructions"
                    : fmt::format("it spills {} bytes of registers", r.spill_store_bytes),
                "this is a fault of Quern: please report this line with " + spec_to_text(spec));
  }
  CompiledKernel kernel;
  kernel.key = kernel_key(spec, target);
  kernel.symbol = "quern_kernel";
  kernel.code = std::move(result.cubin);
  kernel.record = {
      {"compile_ms", fmt::format("{:.0f}", ms)},
      {"code_bytes", fmt::format("{}", kernel.code.size())},
      {"registers", fmt::format("{}", r.registers)},
      {"shared_bytes", fmt::format("{}", r.static_shared_bytes)},
      {"launch_shared_bytes", fmt::format("{}", launch_shared_bytes(spec))},
      {"stack_bytes", fmt::format("{}", r.stack_bytes)},
      {"spill_bytes", fmt::format("{}", r.spill_store_bytes + r.spill_load_bytes)},
      {"wgmma_serialized", r.wgmma_serialized ? "yes" : "no"},
      {"log", result.log},
  };
  return kernel;
}

std::string kernel_ptx(const spec::AnySpec& spec, const Target& target) {
  return run_nvrtc(spec, target, true).ptx;
}

}  // namespace quern::cuda
