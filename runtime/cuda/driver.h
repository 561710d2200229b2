#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace quern::cuda {

// The CUDA driver API as its documentation gives it, declared here because no CUDA header may be
// needed, and loaded from libcuda.so.1, or the file that QUERN_CUDA_DRIVER names, when it is first
// used.
using Result = int;
using DeviceHandle = int;
using DevicePointer = unsigned long long;
struct ContextTag;
struct ModuleTag;
struct FunctionTag;
struct StreamTag;
struct EventTag;
struct GraphTag;
struct GraphExecTag;
using Context = ContextTag*;
using Module = ModuleTag*;
using Function = FunctionTag*;
using Stream = StreamTag*;
using EventHandle = EventTag*;
using Graph = GraphTag*;
using GraphExec = GraphExecTag*;

/// CUlaunchAttribute and CUlaunchConfig of the driver API.
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    int number;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned n_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

struct Driver {
  Result (*cuInit)(unsigned);
  Result (*cuDriverGetVersion)(int*);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuGetErrorString)(Result, const char**);
  Result (*cuDeviceGetCount)(int*);
  Result (*cuDeviceGet)(DeviceHandle*, int);
  Result (*cuDeviceGetName)(char*, int, DeviceHandle);
  Result (*cuDeviceGetAttribute)(int*, int, DeviceHandle);
  Result (*cuDeviceTotalMem)(size_t*, DeviceHandle);
  Result (*cuDevicePrimaryCtxRetain)(Context*, DeviceHandle);
  Result (*cuDevicePrimaryCtxRelease)(DeviceHandle);
  Result (*cuCtxSetCurrent)(Context);
  Result (*cuMemGetInfo)(size_t*, size_t*);
  Result (*cuMemAlloc)(DevicePointer*, size_t);
  Result (*cuMemFree)(DevicePointer);
  Result (*cuMemHostAlloc)(void**, size_t, unsigned);
  Result (*cuMemFreeHost)(void*);
  Result (*cuMemcpyHtoDAsync)(DevicePointer, const void*, size_t, Stream);
  Result (*cuMemcpyDtoHAsync)(void*, DevicePointer, size_t, Stream);
  Result (*cuMemcpyDtoDAsync)(DevicePointer, DevicePointer, size_t, Stream);
  Result (*cuMemsetD8Async)(DevicePointer, unsigned char, size_t, Stream);
  Result (*cuStreamCreate)(Stream*, unsigned);
  Result (*cuStreamDestroy)(Stream);
  Result (*cuStreamSynchronize)(Stream);
  Result (*cuStreamWaitEvent)(Stream, EventHandle, unsigned);
  Result (*cuEventCreate)(EventHandle*, unsigned);
  Result (*cuEventDestroy)(EventHandle);
  Result (*cuEventRecord)(EventHandle, Stream);
  Result (*cuEventSynchronize)(EventHandle);
  Result (*cuEventElapsedTime)(float*, EventHandle, EventHandle);
  Result (*cuModuleLoadData)(Module*, const void*);
  Result (*cuModuleUnload)(Module);
  Result (*cuModuleGetFunction)(Function*, Module, const char*);
  Result (*cuFuncSetAttribute)(Function, int, int);
  Result (*cuLaunchKernelEx)(const LaunchConfig*, Function, void**, void**);
  Result (*cuStreamBeginCapture)(Stream, int);
  Result (*cuStreamEndCapture)(Stream, Graph*);
  Result (*cuGraphInstantiate)(GraphExec*, Graph, unsigned long long);
  Result (*cuGraphLaunch)(GraphExec, Stream);
  Result (*cuGraphExecDestroy)(GraphExec);
  Result (*cuGraphDestroy)(Graph);

  /// The loaded driver, initialised. Throws Error (`failed`) with a remedy where there is none, it
  /// is older than CUDA 12, or it finds no device.
  static const Driver& get();
  /// What is wrong, or empty: for `quern doctor`.
  static std::string problem();
  /// The CUDA version that the driver supports, 13000 for 13.0.
  int version() const;
};

/// Throws Error where a driver call failed: `does_not_fit` for out of memory, `failed` otherwise,
/// naming the driver's own word.
void check(Result result, std::string_view thing);

}  // namespace quern::cuda
