// The stand-in's functions for the driver itself, devices and contexts.

#include <cstring>
#include <map>
#include <utility>

#include "tests/support/fake_cuda/machine.h"

namespace quern::fake_cuda {
namespace {

using cuda::Context;
using cuda::DeviceHandle;

const std::map<Result, std::pair<const char*, const char*>>& errors() {
  static const auto* table = new std::map<Result, std::pair<const char*, const char*>>{
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {101, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {200, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
      {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {701, {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
      {709, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
      {712,
       {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "part or all of the requested memory range is already mapped"}},
      {713,
       {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "pointer does not correspond to a registered memory region"}},
      {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {801, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
      {803,
       {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination"}},
      {900,
       {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing"}},
      {901,
       {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "operation failed due to a previous error during capture"}},
      {903,
       {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        "capture was not ended in the same stream as it began"}},
      {905,
       {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "dependency created on uncaptured work in another stream"}},
      {907,
       {"CUDA_ERROR_CAPTURED_EVENT",
        "operation not permitted on an event last recorded in a capturing stream"}},
      {999, {"CUDA_ERROR_UNKNOWN", "unknown error"}}};
  return *table;
}

bool is_device(const Machine& machine, DeviceHandle device) {
  return device >= 0 && device < machine.settings.devices;
}

/// CUdevice_attribute values that Quern or its tests may ask for; 0 for the rest.
int attribute(const Settings& settings, int number) {
  switch (number) {
    case 1:
      return 1024;  // threads of a block
    case 8:
      return 48 * 1024;  // shared memory of a block
    case 10:
      return 32;  // threads of a warp
    case 16:
      return settings.multiprocessors;
    case 38:
      return 50 * 1024 * 1024;  // L2 cache
    case 39:
      return 2048;  // threads of a multiprocessor
    case 41:
      return 1;  // unified addressing
    case 75:
      return settings.compute_capability / 10;
    case 76:
      return settings.compute_capability % 10;
    case 81:
      return 228 * 1024;  // shared memory of a multiprocessor
    case 82:
      return 65536;  // registers of a multiprocessor
    case 97:
      return 227 * 1024;  // shared memory of a block that asks for it
    default:
      return 0;
  }
}

}  // namespace

FAKE_CUDA_EXPORT Result cuInit(unsigned flags) {
  return call(__func__, needs_nothing, [&](Machine& machine) {
    if (flags != 0) return invalid_value;
    if (machine.settings.start != success) return machine.settings.start;
    if (machine.settings.devices == 0) return no_device;
    machine.started = true;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDriverGetVersion(int* version) {
  return call(__func__, needs_nothing, [&](Machine& machine) {
    *version = machine.settings.version;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuGetErrorName(Result error, const char** name) {
  const auto at = errors().find(error);
  *name = at == errors().end() ? nullptr : at->second.first;
  return at == errors().end() ? invalid_value : success;
}

FAKE_CUDA_EXPORT Result cuGetErrorString(Result error, const char** text) {
  const auto at = errors().find(error);
  *text = at == errors().end() ? nullptr : at->second.second;
  return at == errors().end() ? invalid_value : success;
}

FAKE_CUDA_EXPORT Result cuDeviceGetCount(int* count) {
  return call(__func__, needs_start, [&](Machine& machine) {
    *count = machine.settings.devices;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDeviceGet(DeviceHandle* device, int index) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, index)) return invalid_device;
    *device = index;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDeviceGetName(char* name, int size, DeviceHandle device) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    if (size <= 0) return invalid_value;
    std::strncpy(name, "Stand-in GPU", static_cast<size_t>(size));
    name[size - 1] = '\0';
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDeviceGetAttribute(int* value, int number, DeviceHandle device) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    if (number < 1) return invalid_value;
    *value = attribute(machine.settings, number);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDeviceTotalMem_v2(size_t* bytes, DeviceHandle device) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    *bytes = machine.settings.memory;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDevicePrimaryCtxRetain(Context* context, DeviceHandle device) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    DeviceState& state = machine.devices[device];
    if (state.retained == 0) {
      state.context = machine.new_id();
      machine.contexts[state.context].device = device;
    }
    ++state.retained;
    *context = handle_of<Context>(state.context);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDevicePrimaryCtxRelease_v2(DeviceHandle device) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    DeviceState& state = machine.devices[device];
    if (state.retained == 0)
      return machine.problem("cuDevicePrimaryCtxRelease_v2", "is not retained", invalid_context);
    if (--state.retained == 0) machine.destroy_context(state.context);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuDevicePrimaryCtxGetState(DeviceHandle device, unsigned* flags,
                                                   int* active) {
  return call(__func__, needs_start, [&](Machine& machine) {
    if (!is_device(machine, device)) return invalid_device;
    *flags = 0;
    *active = machine.devices[device].retained != 0 ? 1 : 0;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuCtxSetCurrent(Context context) {
  return call(__func__, needs_start, [&](Machine& machine) {
    const Id id = id_of(context);
    if (id != 0 && machine.find(machine.contexts, id) == nullptr) {
      return machine.problem("cuCtxSetCurrent", "the context was destroyed", invalid_context);
    }
    machine.current() = id;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuCtxGetCurrent(Context* context) {
  return call(__func__, needs_start, [&](Machine& machine) {
    *context = handle_of<Context>(machine.current());
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuCtxSynchronize() {
  return call(__func__, needs_context | not_in_a_capture, [&](Machine& machine) {
    for (auto& [id, stream] : machine.streams) {
      if (stream.context == machine.current()) machine.drain(stream);
    }
    return machine.outcome();
  });
}

FAKE_CUDA_AS_BOUND(cuInit, cuInit);
FAKE_CUDA_AS_BOUND(cuDriverGetVersion, cuDriverGetVersion);
FAKE_CUDA_AS_BOUND(cuGetErrorName, cuGetErrorName);
FAKE_CUDA_AS_BOUND(cuGetErrorString, cuGetErrorString);
FAKE_CUDA_AS_BOUND(cuDeviceGetCount, cuDeviceGetCount);
FAKE_CUDA_AS_BOUND(cuDeviceGet, cuDeviceGet);
FAKE_CUDA_AS_BOUND(cuDeviceGetName, cuDeviceGetName);
FAKE_CUDA_AS_BOUND(cuDeviceGetAttribute, cuDeviceGetAttribute);
FAKE_CUDA_AS_BOUND(cuDeviceTotalMem_v2, cuDeviceTotalMem);
FAKE_CUDA_AS_BOUND(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
FAKE_CUDA_AS_BOUND(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease);
FAKE_CUDA_AS_BOUND(cuCtxSetCurrent, cuCtxSetCurrent);

}  // namespace quern::fake_cuda
