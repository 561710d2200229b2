// The stand-in's functions for memory: allocation, copies, fills.

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/support/fake_cuda/machine.h"

namespace quern::fake_cuda {
namespace {

using cuda::Stream;

constexpr size_t page = 4096;

/// The range of a copy or fill on the device, checked when the call is made.
Result check_range(Machine& machine, const char* function, DevicePointer address, uint64_t bytes) {
  if (bytes == 0 || machine.memory(address, bytes) != nullptr) return success;
  return machine.problem(function,
                         fmt::format("{} bytes at {:#x} lie in no allocation", bytes, address),
                         invalid_value);
}

Result check_host(Machine& machine, const char* function, const void* address, uint64_t bytes) {
  if (bytes == 0) return success;
  if (address == nullptr) return machine.problem(function, "null host memory", invalid_value);
  if (machine.host_range(address, bytes) != Machine::HostRange::beyond) return success;
  return machine.problem(function,
                         fmt::format("{} bytes of the host end beyond the pinned memory", bytes),
                         invalid_value);
}

/// The same when the work runs: memory may have gone since.
std::byte* at_run(Machine& machine, Id context, const char* function, DevicePointer address,
                  uint64_t bytes) {
  std::byte* memory = machine.memory(address, bytes);
  if (memory == nullptr) {
    machine.problem(function, "its memory was freed before it ran", illegal_address);
    machine.fail(context, illegal_address, fault_sticky);
  }
  return memory;
}

Result no_stream(Machine& machine, const char* function) {
  return machine.problem(function, "the stream does not live", invalid_handle);
}

/// Pageable memory is read before the call returns and may not be captured; pinned memory is read
/// when the work runs.
Result to_device(Machine& machine, const char* function, DevicePointer to, const void* from,
                 size_t bytes, StreamState& stream) {
  const Id context = stream.context;
  if (machine.host_range(from, bytes) == Machine::HostRange::page_locked) {
    machine.enqueue(stream, {[&machine, function, context, to, from, bytes] {
                      std::byte* memory = at_run(machine, context, function, to, bytes);
                      if (memory != nullptr) std::memcpy(memory, from, bytes);
                    }});
    return success;
  }
  if (stream.capture != nullptr) {
    stream.capture->invalid = true;
    return machine.problem(function, "pageable memory in a capture", capture_unsupported);
  }
  const std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);
  std::memcpy(copy.get(), from, bytes);
  machine.enqueue(stream, {[&machine, function, context, to, copy, bytes] {
                    std::byte* memory = at_run(machine, context, function, to, bytes);
                    if (memory != nullptr) std::memcpy(memory, copy.get(), bytes);
                  }});
  return success;
}

/// Into pageable memory the call returns when all is there.
Result to_host(Machine& machine, const char* function, void* to, DevicePointer from, size_t bytes,
               StreamState& stream) {
  const Id context = stream.context;
  const bool pinned = machine.host_range(to, bytes) == Machine::HostRange::page_locked;
  if (!pinned && stream.capture != nullptr) {
    stream.capture->invalid = true;
    return machine.problem(function, "pageable memory in a capture", capture_unsupported);
  }
  machine.enqueue(stream, {[&machine, function, context, to, from, bytes] {
                    const std::byte* memory = at_run(machine, context, function, from, bytes);
                    if (memory != nullptr) std::memcpy(to, memory, bytes);
                  }});
  if (pinned) return success;
  machine.drain(stream);
  return machine.outcome();
}

template <class Value>
Result fill(const char* function, DevicePointer to, Value value, size_t count, Stream stream) {
  return call(function, needs_context, [&](Machine& machine) -> Result {
    const uint64_t bytes = count * sizeof(Value);
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, function);
    if (to % sizeof(Value) != 0) return machine.problem(function, "not aligned", invalid_value);
    if (const Result bad = check_range(machine, function, to, bytes); bad != success) return bad;
    if (bytes == 0) return success;
    const Id context = queue->context;
    machine.enqueue(*queue, {[&machine, function, context, to, value, count, bytes] {
      std::byte* memory = at_run(machine, context, function, to, bytes);
      for (size_t i = 0; memory != nullptr && i < count; ++i) {
        std::memcpy(memory + i * sizeof(Value), &value, sizeof(Value));
      }
    }});
    return success;
  });
}

}  // namespace

FAKE_CUDA_EXPORT Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return call(__func__, needs_context, [&](Machine& machine) {
    const uint64_t used = machine.devices[machine.context()->device].used;
    *total_bytes = machine.settings.memory;
    *free_bytes = machine.settings.memory - std::min(used, machine.settings.memory);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemAlloc_v2(DevicePointer* out, size_t bytes) {
  return call(__func__, needs_context | not_in_a_capture,
              [&](Machine& machine) { return machine.allocate(bytes, out); });
}

FAKE_CUDA_EXPORT Result cuMemFree_v2(DevicePointer address) {
  return call("cuMemFree_v2", needs_context | releases | not_in_a_capture, [&](Machine& machine) {
    machine.drain_all();
    return machine.release("cuMemFree_v2", address);
  });
}

FAKE_CUDA_EXPORT Result cuMemAllocAsync(DevicePointer* out, size_t bytes, Stream stream) {
  return call("cuMemAllocAsync", needs_context, [&](Machine& machine) -> Result {
    const StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, "cuMemAllocAsync");
    if (queue->capture != nullptr) return not_supported;
    return machine.allocate(bytes, out);
  });
}

FAKE_CUDA_EXPORT Result cuMemFreeAsync(DevicePointer address, Stream stream) {
  return call("cuMemFreeAsync", needs_context | releases, [&](Machine& machine) -> Result {
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, "cuMemFreeAsync");
    if (queue->capture != nullptr) return not_supported;
    if (machine.context()->sticky != success) return machine.release("cuMemFreeAsync", address);
    machine.enqueue(*queue, {[&machine, address] { machine.release("cuMemFreeAsync", address); }});
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  return call("cuMemHostAlloc", needs_context | not_in_a_capture, [&](Machine& machine) -> Result {
    if (out == nullptr || bytes == 0) {
      return machine.problem("cuMemHostAlloc", "of no bytes", invalid_value);
    }
    void* memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
    if (memory == nullptr) return out_of_memory;
    machine.pinned[reinterpret_cast<uintptr_t>(memory)] = {
        .context = machine.current(), .bytes = bytes, .registered = false};
    *out = memory;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemFreeHost(void* address) {
  return call("cuMemFreeHost", needs_context | releases | not_in_a_capture, [&](Machine& machine) {
    const auto at = machine.pinned.find(reinterpret_cast<uintptr_t>(address));
    if (at == machine.pinned.end() || at->second.registered) {
      return machine.problem("cuMemFreeHost", "is no pinned memory", invalid_value);
    }
    machine.drain_all();
    machine.pinned.erase(at);
    std::free(address);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  return call(
      "cuMemHostRegister_v2", needs_context | not_in_a_capture, [&](Machine& machine) -> Result {
        if (address == nullptr || bytes == 0) {
          return machine.problem("cuMemHostRegister_v2", "of no bytes", invalid_value);
        }
        const auto start = reinterpret_cast<uintptr_t>(address);
        const auto after = machine.pinned.lower_bound(start + bytes);
        if (after != machine.pinned.begin()) {
          const auto& [begin, range] = *std::prev(after);
          if (begin + range.bytes > start) return already_registered;
        }
        machine.pinned[start] = {.context = machine.current(), .bytes = bytes, .registered = true};
        return success;
      });
}

FAKE_CUDA_EXPORT Result cuMemHostUnregister(void* address) {
  return call(
      "cuMemHostUnregister", needs_context | releases | not_in_a_capture, [&](Machine& machine) {
        const auto at = machine.pinned.find(reinterpret_cast<uintptr_t>(address));
        if (at == machine.pinned.end() || !at->second.registered) {
          return machine.problem("cuMemHostUnregister", "is not registered", not_registered);
        }
        machine.drain_all();
        machine.pinned.erase(at);
        return success;
      });
}

FAKE_CUDA_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes,
                                             Stream stream) {
  static constexpr auto name = "cuMemcpyHtoDAsync_v2";
  return call(name, needs_context, [&](Machine& machine) -> Result {
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, name);
    if (const Result bad = check_range(machine, name, to, bytes); bad != success) return bad;
    if (const Result bad = check_host(machine, name, from, bytes); bad != success) return bad;
    return bytes == 0 ? success : to_device(machine, name, to, from, bytes, *queue);
  });
}

FAKE_CUDA_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes,
                                             Stream stream) {
  static constexpr auto name = "cuMemcpyDtoHAsync_v2";
  return call(name, needs_context, [&](Machine& machine) -> Result {
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, name);
    if (const Result bad = check_range(machine, name, from, bytes); bad != success) return bad;
    if (const Result bad = check_host(machine, name, to, bytes); bad != success) return bad;
    return bytes == 0 ? success : to_host(machine, name, to, from, bytes, *queue);
  });
}

FAKE_CUDA_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes,
                                             Stream stream) {
  static constexpr auto name = "cuMemcpyDtoDAsync_v2";
  return call(name, needs_context, [&](Machine& machine) -> Result {
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (queue == nullptr) return no_stream(machine, name);
    if (const Result bad = check_range(machine, name, to, bytes); bad != success) return bad;
    if (const Result bad = check_range(machine, name, from, bytes); bad != success) return bad;
    if (bytes == 0) return success;
    const Id context = queue->context;
    machine.enqueue(*queue, {[&machine, context, to, from, bytes] {
      std::byte* target = at_run(machine, context, name, to, bytes);
      const std::byte* source = at_run(machine, context, name, from, bytes);
      if (target != nullptr && source != nullptr) {
        std::memmove(target, source, bytes);
      }
    }});
    return success;
  });
}

// Copies without a stream do not wait for streams of the kind that Quern makes (non-blocking).
FAKE_CUDA_EXPORT Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
  static constexpr auto name = "cuMemcpyHtoD_v2";
  return call(name, needs_context | not_in_a_capture, [&](Machine& machine) -> Result {
    if (const Result bad = check_range(machine, name, to, bytes); bad != success) return bad;
    if (const Result bad = check_host(machine, name, from, bytes); bad != success) return bad;
    if (bytes != 0) std::memcpy(machine.memory(to, bytes), from, bytes);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  static constexpr auto name = "cuMemcpyDtoH_v2";
  return call(name, needs_context | not_in_a_capture, [&](Machine& machine) -> Result {
    if (const Result bad = check_range(machine, name, from, bytes); bad != success) return bad;
    if (const Result bad = check_host(machine, name, to, bytes); bad != success) return bad;
    if (bytes != 0) std::memcpy(to, machine.memory(from, bytes), bytes);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count,
                                        Stream stream) {
  return fill("cuMemsetD8Async", to, value, count, stream);
}

FAKE_CUDA_EXPORT Result cuMemsetD32Async(DevicePointer to, unsigned value, size_t count,
                                         Stream stream) {
  return fill("cuMemsetD32Async", to, value, count, stream);
}

FAKE_CUDA_AS_BOUND(cuMemGetInfo_v2, cuMemGetInfo);
FAKE_CUDA_AS_BOUND(cuMemAlloc_v2, cuMemAlloc);
FAKE_CUDA_AS_BOUND(cuMemFree_v2, cuMemFree);
FAKE_CUDA_AS_BOUND(cuMemHostAlloc, cuMemHostAlloc);
FAKE_CUDA_AS_BOUND(cuMemFreeHost, cuMemFreeHost);
FAKE_CUDA_AS_BOUND(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync);
FAKE_CUDA_AS_BOUND(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync);
FAKE_CUDA_AS_BOUND(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync);
FAKE_CUDA_AS_BOUND(cuMemsetD8Async, cuMemsetD8Async);

}  // namespace quern::fake_cuda
