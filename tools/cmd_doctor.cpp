// quern doctor: what of this machine Quern can use, what it cannot, and what to do about it.

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <llvm/Config/llvm-config.h>

#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

void say(std::string_view mark, std::string_view subject, std::string_view text) {
  write_out(fmt::format("{:<5} {:<12} {}\n", mark, subject, text));
}

/// A library opened at run time; null where there is none of these names.
class Library {
 public:
  explicit Library(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      handle_ = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = name;
        return;
      }
    }
  }
  // Never closed: CUDA libraries do not survive it, and the process ends soon.

  bool loaded() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  template <class Function>
  Function* symbol(const char* symbol_name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, symbol_name));
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
};

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
  const Library driver({"libcuda.so.1"});
  if (!driver.loaded()) {
    say("none", "cuda driver", "libcuda.so.1 is not installed: no GPU here; the CPU is used");
    return;
  }
  auto* init = driver.symbol<int(unsigned)>("cuInit");
  auto* version = driver.symbol<int(int*)>("cuDriverGetVersion");
  auto* count = driver.symbol<int(int*)>("cuDeviceGetCount");
  int number = 0, devices = 0;
  if (init == nullptr || version == nullptr || count == nullptr || version(&number) != 0) {
    say("BAD", "cuda driver",
        "libcuda.so.1 lacks the driver's functions: install the driver again");
    return;
  }
  const std::string release = fmt::format("CUDA {}.{}", number / 1000, number % 1000 / 10);
  if (const int code = init(0); code != 0) {
    say("BAD", "cuda driver",
        fmt::format("{}, but it does not start (error {}): is a GPU present and its kernel module "
                    "loaded?",
                    release, code));
    return;
  }
  count(&devices);
  say("ok", "cuda driver", fmt::format("{}, {} devices", release, devices));
}

void check_nvrtc() {
  const Library nvrtc({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  if (!nvrtc.loaded()) {
    say("none", "nvrtc", "not installed; needed only to compile GPU kernels");
    return;
  }
  int major = 0, minor = 0;
  auto* version = nvrtc.symbol<int(int*, int*)>("nvrtcVersion");
  if (version == nullptr || version(&major, &minor) != 0) {
    say("BAD", "nvrtc", fmt::format("{} does not answer: install it again", nvrtc.name()));
    return;
  }
  say("ok", "nvrtc", fmt::format("{}.{} ({})", major, minor, nvrtc.name()));
}

void check_cublas() {
  const Library cublas({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
  if (!cublas.loaded()) {
    say("none", "cublasLt", "not installed; needed only for --numerics fast on a GPU");
    return;
  }
  auto* version = cublas.symbol<size_t()>("cublasLtGetVersion");
  if (version == nullptr) {
    say("BAD", "cublasLt", fmt::format("{} does not answer: install it again", cublas.name()));
    return;
  }
  say("ok", "cublasLt", fmt::format("{} ({})", version(), cublas.name()));
}

int doctor() {
  say("ok", "quern", QUERN_VERSION);
  const bool cpu_works = check_cpu();
  check_store();
  check_driver();
  check_nvrtc();
  check_cublas();
  say("note", "gpu", "this build has no GPU back end: models run on the CPU");
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
