// quern doctor: what of this machine Quern can use, what it cannot, and what to do about it.

#include <unistd.h>

#include <cstring>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <llvm/Config/llvm-config.h>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/nvrtc.h"
#include "models/error.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/cuda/device.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

void say(std::string_view mark, std::string_view subject, std::string_view text) {
  write_out(fmt::format("{:<5} {:<12} {}\n", mark, subject, text));
}

/// The whole CPU path in small: resolve the target, specialise one kernel, emit its object.
bool check_cpu() {
  try {
    const Target target = cpu::resolve_target("native");
    say("ok", "cpu",
        fmt::format("{}, {} hardware threads", target.name, std::thread::hardware_concurrency()));
    say("ok", "features", target.features);
    std::string missing;
    if (!cpu::can_run(cpu::resolve_target("x86-64-v3"), &missing)) {
      say("note", "cpu", fmt::format("lacks {}: plans for x86-64-v3 do not run here", missing));
    }
    const CompiledKernel kernel = cpu::compile_kernel(spec::AddSpec{}, target);
    say("ok", "llvm",
        fmt::format("{}, compiled a kernel of {} bytes", LLVM_VERSION_STRING, kernel.code.size()));
    return true;
  } catch (const Error& error) {
    say("BAD", "cpu", error.what());
    return false;
  }
}

void check_store() {
  const std::optional<std::filesystem::path> path = default_store_path();
  if (!path) {
    say("BAD", "store", "no folder: set QUERN_CACHE_DIR or HOME; kernels are kept in memory only");
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(*path, error);
  if (error || access(path->c_str(), W_OK) != 0) {
    say("BAD", "store",
        fmt::format("{} cannot be written ({}): every run compiles again; set "
                    "QUERN_CACHE_DIR to a folder of yours",
                    path->string(), error ? error.message() : std::strerror(errno)));
    return;
  }
  uint64_t bytes = 0, entries = 0;
  for (const StoreEntry& entry : KernelStore(store_options("readonly", std::nullopt)).list()) {
    bytes += entry.file_bytes;
    ++entries;
  }
  const std::filesystem::space_info space = std::filesystem::space(*path, error);
  say("ok", "store",
      fmt::format("{}: {} kernels, {}; {} free on the disk", path->string(), entries,
                  human_bytes(bytes), error ? "?" : human_bytes(space.available)));
}

void check_driver() {
  try {
    const int devices = cuda::Device::count();
    say("ok", "cuda driver", fmt::format("{} devices", devices));
    for (int i = 0; i < devices; ++i) {
      const auto device = cuda::Device::open(i);
      const cuda::Device::Memory memory = device->memory();
      const uint32_t capability = device->compute_capability();
      say("ok", fmt::format("cuda:{}", i),
          fmt::format("{}, compute capability {}.{}, {} of {} free", device->name(),
                      capability / 10, capability % 10, human_bytes(memory.free_bytes),
                      human_bytes(memory.total_bytes)));
    }
  } catch (const Error& error) {
    say("none", "cuda driver", error.what());
  }
}

void check_nvrtc() {
  const std::string problem = cuda::Nvrtc::problem();
  if (!problem.empty()) {
    say("none", "nvrtc", problem);
    return;
  }
  say("ok", "nvrtc", cuda::Nvrtc::get().version());
}

void check_cublas() {
  const std::string problem = cuda::CublasLt::problem();
  if (!problem.empty()) {
    say("none", "cublasLt", problem + "; only --numerics fast and benchmarks on a GPU use it");
    return;
  }
  say("ok", "cublasLt", cuda::CublasLt::get().version());
}

int doctor() {
  say("ok", "quern", QUERN_VERSION);
  const bool cpu_works = check_cpu();
  check_store();
  check_driver();
  check_nvrtc();
  check_cublas();
  return cpu_works ? 0 : static_cast<int>(ErrorKind::failed);
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("doctor", "Say what works on this machine, what does not, what to do");
  command->callback([&action] {
    action = [] {
      set_up_logging(0);
      return doctor();
    };
  });
}

}  // namespace quern::tools
