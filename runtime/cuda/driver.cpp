#include "runtime/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "models/error.h"
#include "models/shared_library.h"

namespace quern::cuda {
namespace {

constexpr int out_of_memory = 2;
constexpr int no_device = 100;
// After these the context answers every call with them: illegal address, launch timeout, assert,
// hardware stack, illegal instruction, misaligned address, address space, program counter, launch.
constexpr std::array lost_context = {700, 702, 710, 714, 715, 716, 717, 718, 719};
constexpr std::string_view no_driver_remedy = "install NVIDIA's driver, or use --device cpu";

template <class F>
void bind(void* library, const char* symbol, F& function) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  if (function == nullptr) {
    throw Error(ErrorKind::failed, "CUDA driver", fmt::format("it has no function {}", symbol),
                "update the driver to one that supports CUDA 12 or newer");
  }
}

void bind_memory(void* library, Driver& d) {
  bind(library, "cuMemGetInfo_v2", d.cuMemGetInfo);
  bind(library, "cuMemAlloc_v2", d.cuMemAlloc);
  bind(library, "cuMemFree_v2", d.cuMemFree);
  bind(library, "cuMemHostAlloc", d.cuMemHostAlloc);
  bind(library, "cuMemFreeHost", d.cuMemFreeHost);
  bind(library, "cuMemcpyHtoDAsync_v2", d.cuMemcpyHtoDAsync);
  bind(library, "cuMemcpyDtoHAsync_v2", d.cuMemcpyDtoHAsync);
  bind(library, "cuMemcpyDtoDAsync_v2", d.cuMemcpyDtoDAsync);
  bind(library, "cuMemsetD8Async", d.cuMemsetD8Async);
}

void bind_execution(void* library, Driver& d) {
  bind(library, "cuStreamCreate", d.cuStreamCreate);
  bind(library, "cuStreamDestroy_v2", d.cuStreamDestroy);
  bind(library, "cuStreamSynchronize", d.cuStreamSynchronize);
  bind(library, "cuStreamWaitEvent", d.cuStreamWaitEvent);
  bind(library, "cuEventCreate", d.cuEventCreate);
  bind(library, "cuEventDestroy_v2", d.cuEventDestroy);
  bind(library, "cuEventRecord", d.cuEventRecord);
  bind(library, "cuEventSynchronize", d.cuEventSynchronize);
  bind(library, "cuEventElapsedTime", d.cuEventElapsedTime);
  bind(library, "cuModuleLoadData", d.cuModuleLoadData);
  bind(library, "cuModuleUnload", d.cuModuleUnload);
  bind(library, "cuModuleGetFunction", d.cuModuleGetFunction);
  bind(library, "cuFuncSetAttribute", d.cuFuncSetAttribute);
  bind(library, "cuLaunchKernelEx", d.cuLaunchKernelEx);
  bind(library, "cuStreamBeginCapture_v2", d.cuStreamBeginCapture);
  bind(library, "cuStreamEndCapture", d.cuStreamEndCapture);
  bind(library, "cuGraphInstantiateWithFlags", d.cuGraphInstantiate);
  bind(library, "cuGraphLaunch", d.cuGraphLaunch);
  bind(library, "cuGraphExecDestroy", d.cuGraphExecDestroy);
  bind(library, "cuGraphDestroy", d.cuGraphDestroy);
}

Driver load() {
  const auto [library, path] = load_library(
      {.thing = "CUDA driver",
       .variable = "QUERN_CUDA_DRIVER",
       .wanted = "libcuda.so.1",
       .candidates = {"libcuda.so.1"},
       .remedy = no_driver_remedy,
       .remedy_of_given = "unset it for the machine's own driver, or use --device cpu"});
  Driver d{};
  bind(library, "cuInit", d.cuInit);
  bind(library, "cuDriverGetVersion", d.cuDriverGetVersion);
  bind(library, "cuGetErrorName", d.cuGetErrorName);
  bind(library, "cuGetErrorString", d.cuGetErrorString);
  bind(library, "cuDeviceGetCount", d.cuDeviceGetCount);
  bind(library, "cuDeviceGet", d.cuDeviceGet);
  bind(library, "cuDeviceGetName", d.cuDeviceGetName);
  bind(library, "cuDeviceGetAttribute", d.cuDeviceGetAttribute);
  bind(library, "cuDeviceTotalMem_v2", d.cuDeviceTotalMem);
  bind(library, "cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", d.cuDevicePrimaryCtxRelease);
  bind(library, "cuCtxSetCurrent", d.cuCtxSetCurrent);
  bind_memory(library, d);
  bind_execution(library, d);

  const Result started = d.cuInit(0);
  if (started == no_device) {
    throw Error(ErrorKind::failed, "CUDA driver", "it finds no GPU", "use --device cpu");
  }
  if (started != 0) {
    const char* name = nullptr;
    d.cuGetErrorName(started, &name);
    throw Error(ErrorKind::failed, "CUDA driver",
                fmt::format("it does not start ({})", name == nullptr ? "?" : name),
                "see whether nvidia-smi works, or use --device cpu");
  }
  if (d.version() < 12000) {
    throw Error(ErrorKind::failed, "CUDA driver",
                fmt::format("it supports CUDA {}.{}, Quern needs 12.0", d.version() / 1000,
                            d.version() % 1000 / 10),
                "update the driver, or use --device cpu");
  }
  return d;
}

}  // namespace

const Driver& Driver::get() {
  static std::mutex mutex;
  static std::optional<Driver> loaded;
  std::lock_guard lock(mutex);
  if (!loaded) loaded.emplace(load());
  return *loaded;
}

std::string Driver::problem() {
  try {
    get();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

int Driver::version() const {
  int version = 0;
  cuDriverGetVersion(&version);
  return version;
}

void check(Result result, std::string_view thing) {
  if (result == 0) return;
  const Driver& driver = Driver::get();
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  const std::string reason = fmt::format("{} ({})", text == nullptr ? "unknown error" : text,
                                         name == nullptr ? "?" : name);
  if (result == out_of_memory) {
    throw Error(ErrorKind::does_not_fit, thing, reason,
                "use a smaller --ctx, --chunk or --kv type, or free device memory");
  }
  const bool lost =
      std::find(lost_context.begin(), lost_context.end(), result) != lost_context.end();
  throw Error(ErrorKind::failed, thing, reason,
              lost ? "load the model again, or use --device cpu" : "");
}

}  // namespace quern::cuda
