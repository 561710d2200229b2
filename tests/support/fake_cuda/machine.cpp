#include "tests/support/fake_cuda/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace quern::fake_cuda {
namespace {

constexpr uint64_t allocation_alignment = 512;
constexpr uint64_t gap = 1 << 20;  ///< Between allocations: what runs over an end hits nothing.

template <class Number>
void read_variable(const char* name, Number& value) {
  const char* text = std::getenv(name);
  if (text != nullptr && *text != '\0') {
    value = static_cast<Number>(std::strtoull(text, nullptr, 10));
  }
}

/// "A:B:C" in its parts.
std::vector<std::string> parts(const char* text) {
  std::vector<std::string> result(1);
  for (; *text != '\0'; ++text) {
    if (*text == ':') {
      result.emplace_back();
    } else {
      result.back() += *text;
    }
  }
  return result;
}

uint64_t number(const std::vector<std::string>& texts, size_t index, uint64_t otherwise) {
  return index < texts.size() ? std::strtoull(texts[index].c_str(), nullptr, 10) : otherwise;
}

}  // namespace

Machine& Machine::get() {
  static auto* machine = new Machine;  // outlives every static object that still frees memory
  return *machine;
}

Machine::Machine() {
  configure();
  if (const char* text = std::getenv("FAKE_CUDA_FAIL_LAUNCH")) {
    const auto fields = parts(text);
    late_launch_faults.push_back({.function = {},
                                  .left = number(fields, 0, 0),
                                  .error = static_cast<Result>(number(fields, 1, launch_failed)),
                                  .flags = fault_late | fault_sticky});
  }
  if (const char* text = std::getenv("FAKE_CUDA_FAIL_CALL")) {
    const auto fields = parts(text);
    faults.push_back({.function = fields[0],
                      .left = number(fields, 1, 0),
                      .error = static_cast<Result>(number(fields, 2, unknown)),
                      .flags = 0});
  }
}

void Machine::configure() {
  settings = {};
  read_variable("FAKE_CUDA_MEMORY", settings.memory);
  read_variable("FAKE_CUDA_CC", settings.compute_capability);
  read_variable("FAKE_CUDA_VERSION", settings.version);
  read_variable("FAKE_CUDA_DEVICES", settings.devices);
  read_variable("FAKE_CUDA_MULTIPROCESSORS", settings.multiprocessors);
  read_variable("FAKE_CUDA_INIT", settings.start);
}

void Machine::reset() {
  configure();
  launches.clear();
  calls.clear();
  faults.clear();
  launch_faults.clear();
  late_launch_faults.clear();
  problems.clear();
  leaks.clear();
  on_launch = nullptr;
  on_launch_user = nullptr;
}

Result Machine::problem(const char* function, const std::string& text, Result result) {
  problems.push_back(fmt::format("{}: {}", function, text));
  return result;
}

// ---- contexts ----

Id& Machine::current() {
  thread_local Id current = 0;
  return current;
}

std::vector<std::string> Machine::living(Id context) const {
  std::vector<std::string> lines;
  const auto mine = [&](const auto& object) { return context == 0 || object.context == context; };
  for (const auto& [address, allocation] : allocations) {
    if (mine(allocation)) lines.push_back(fmt::format("{} bytes of the device", allocation.bytes));
  }
  for (const auto& [address, range] : pinned) {
    if (mine(range)) lines.push_back(fmt::format("{} bytes of pinned memory", range.bytes));
  }
  const auto list = [&](const auto& objects, const char* what) {
    for (const auto& [id, object] : objects) {
      if (mine(object)) lines.emplace_back(what);
    }
  };
  list(streams, "a stream");
  list(events, "an event");
  list(modules, "a module");
  list(graphs, "a graph");
  list(executables, "an instantiated graph");
  return lines;
}

void Machine::destroy_context(Id context) {
  for (auto& [id, stream] : streams) {
    if (stream.context == context) drain(stream);
  }
  for (const std::string& line : living(context)) leaks.push_back(line + " outlived its context");
  const auto mine = [&](const auto& entry) { return entry.second.context == context; };
  std::erase_if(allocations, mine);
  for (const auto& [address, range] : pinned) {
    if (range.context == context && !range.registered) std::free(reinterpret_cast<void*>(address));
  }
  std::erase_if(pinned, mine);
  std::erase_if(functions, [&](const auto& entry) {
    const ModuleState* module = find(modules, entry.second.module);
    return module == nullptr || module->context == context;
  });
  std::erase_if(streams, mine);
  std::erase_if(events, mine);
  std::erase_if(modules, mine);
  std::erase_if(graphs, mine);
  std::erase_if(executables, mine);
  const int device = contexts.at(context).device;
  devices[device] = {};
  contexts.erase(context);
}

// ---- memory ----

Result Machine::allocate(uint64_t bytes, DevicePointer* out) {
  if (out == nullptr || bytes == 0) return problem("allocation", "of no bytes", invalid_value);
  const uint64_t rounded =
      (bytes + allocation_alignment - 1) / allocation_alignment * allocation_alignment;
  DeviceState& device = devices[context()->device];
  if (rounded < bytes || rounded > settings.memory - std::min(device.used, settings.memory)) {
    return out_of_memory;
  }
  Allocation allocation{.context = current(),
                        .bytes = bytes,
                        .data = std::make_unique_for_overwrite<std::byte[]>(bytes)};
  std::memset(allocation.data.get(), 0xff, bytes);  // what nobody wrote is NaN, not 0
  device.used += rounded;
  const uint64_t address = next_address_;
  next_address_ += rounded + gap;
  allocations.emplace(address, std::move(allocation));
  *out = address;
  return success;
}

Result Machine::release(const char* function, DevicePointer address) {
  if (address == 0) return success;
  const auto at = allocations.find(address);
  if (at == allocations.end()) {
    return problem(function, fmt::format("{:#x} is no allocation", address), invalid_value);
  }
  const uint64_t rounded =
      (at->second.bytes + allocation_alignment - 1) / allocation_alignment * allocation_alignment;
  devices[contexts.at(at->second.context).device].used -= rounded;
  allocations.erase(at);
  return success;
}

std::byte* Machine::memory(DevicePointer address, uint64_t bytes) {
  auto at = allocations.upper_bound(address);
  if (at == allocations.begin()) return nullptr;
  --at;
  const uint64_t offset = address - at->first;
  const Allocation& allocation = at->second;
  if (offset >= allocation.bytes || bytes > allocation.bytes - offset) return nullptr;
  return allocation.data.get() + offset;
}

Machine::HostRange Machine::host_range(const void* address, uint64_t bytes) const {
  const auto start = reinterpret_cast<uintptr_t>(address);
  auto at = pinned.upper_bound(start);
  if (at == pinned.begin()) return HostRange::pageable;
  --at;
  const uint64_t offset = start - at->first;
  if (offset >= at->second.bytes) return HostRange::pageable;
  return bytes <= at->second.bytes - offset ? HostRange::page_locked : HostRange::beyond;
}

// ---- streams ----

void Machine::enqueue(StreamState& stream, Operation operation) {
  if (stream.capture != nullptr) {
    stream.capture->operations.push_back(std::move(operation));
  } else {
    stream.queue.push_back(std::move(operation));
  }
}

void Machine::drain(StreamState& stream, const EventState* event, uint64_t record) {
  while (!stream.queue.empty() && (event == nullptr || event->done < record)) {
    const Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    const ContextState* owner = find(contexts, stream.context);
    // A failed context does no more work.
    if (owner != nullptr && owner->sticky == success) operation.run();
  }
}

void Machine::drain_all() {
  for (auto& [id, stream] : streams) drain(stream);
}

Result Machine::outcome() {
  ContextState* state = context();
  if (state == nullptr) return invalid_context;
  if (state->sticky != success) return state->sticky;
  return std::exchange(state->pending, success);
}

void Machine::fail(Id id, Result error, unsigned flags) {
  ContextState* state = find(contexts, id);
  if (state == nullptr) return;
  if ((flags & fault_sticky) != 0) {
    if (state->sticky == success) state->sticky = error;
  } else {
    state->pending = error;
  }
}

// ---- launches ----

Result Machine::refuse_launches(uint64_t count) {
  Result result = success;
  std::erase_if(launch_faults, [&](CallFault& fault) {
    if (fault.left >= count) {
      fault.left -= count;
      return false;
    }
    result = fault.error;
    if ((fault.flags & fault_sticky) != 0) fail(current(), fault.error, fault.flags);
    return true;
  });
  return result;
}

void Machine::run_launch(Id context, Launch launch) {
  bool failed = false;
  std::erase_if(late_launch_faults, [&](CallFault& fault) {
    if (fault.left-- > 0) return false;
    fail(context, fault.error, fault.flags);
    return failed = true;
  });
  const auto check = [&](const void* pointer, uint64_t bytes, const std::string& what) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address == 0 || memory(address, bytes) != nullptr) return;
    problem("launch",
            fmt::format("of '{}': {} at {:#x} is in no allocation", launch.kernel, what, address),
            illegal_address);
    fail(context, illegal_address, fault_sticky);
    failed = true;
  };
  for (uint32_t i = 0; i < cuda::max_buffers; ++i) {
    check(launch.args.buffers[i], 1, fmt::format("buffer {}", i));
  }
  check(launch.args.state, sizeof(cuda::RunState), "the state");
  check(launch.args.saturated, sizeof(uint32_t), "the counter of saturated values");
  if (failed) return;
  if (launch.args.state != nullptr) {
    std::memcpy(&launch.state,
                memory(reinterpret_cast<uint64_t>(launch.args.state), sizeof(cuda::RunState)),
                sizeof(cuda::RunState));
  }
  launches.push_back(launch);
  if (on_launch != nullptr) on_launch(launch, on_launch_user);
}

// ---- calls ----

Result Machine::injected(const char* function, unsigned needs) {
  Result result = success;
  std::erase_if(faults, [&](CallFault& fault) {
    const bool meant = fault.function.empty()
                           ? (needs & needs_context) == needs_context && (needs & releases) == 0
                           : fault.function == function;
    if (!meant || fault.left-- > 0) return false;
    result = fault.error;
    if ((fault.flags & fault_sticky) != 0) fail(current(), fault.error, fault.flags);
    return true;
  });
  return result;
}

bool Machine::capture_forbids() {
  bool forbidden = false;
  for (auto& [id, stream] : streams) {
    if (stream.capture == nullptr || stream.capture->mode == 2) continue;
    if (stream.capture->mode == 1 && stream.capture->thread != std::this_thread::get_id()) continue;
    stream.capture->invalid = forbidden = true;
  }
  return forbidden;
}

Result Machine::before(const char* function, unsigned needs, bool& run_body) {
  ++calls[function];
  run_body = false;
  if ((needs & needs_start) != 0 && !started) return not_initialised;
  Result early = success;
  if ((needs & needs_context) == needs_context) {
    if (current() == 0) {
      return problem(function, "no context is current in this thread", invalid_context);
    }
    const ContextState* state = context();
    if (state == nullptr) {
      return problem(function, "the current context was destroyed", context_destroyed);
    }
    early = state->sticky;
  }
  if (early == success) early = injected(function, needs);
  if (early == success && (needs & not_in_a_capture) != 0 && capture_forbids()) {
    early = problem(function, "not permitted while a stream is captured", capture_unsupported);
  }
  run_body = early == success || (needs & releases) != 0;
  return early;
}

}  // namespace quern::fake_cuda
