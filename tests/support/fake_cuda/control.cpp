#include "tests/support/fake_cuda/control.h"

#include <cstring>

#include "tests/support/fake_cuda/machine.h"

namespace quern::fake_cuda {
namespace {

/// Runs with the machine locked.
template <class Body>
auto locked(Body&& body) {
  Machine& machine = Machine::get();
  std::lock_guard lock(machine.mutex);
  return body(machine);
}

size_t write_lines(const std::vector<std::string>& lines, char* text, size_t size) {
  std::string joined;
  for (const std::string& line : lines) joined += line + "\n";
  if (size > 0) {
    const size_t length = std::min(joined.size(), size - 1);
    std::memcpy(text, joined.data(), length);
    text[length] = '\0';
  }
  return lines.size();
}

}  // namespace

FAKE_CUDA_EXPORT void fake_cuda_reset() {
  locked([](Machine& machine) { machine.reset(); });
}

FAKE_CUDA_EXPORT void fake_cuda_set_memory(uint64_t bytes) {
  locked([&](Machine& machine) { machine.settings.memory = bytes; });
}

FAKE_CUDA_EXPORT uint64_t fake_cuda_launches() {
  return locked([](Machine& machine) -> uint64_t { return machine.launches.size(); });
}

FAKE_CUDA_EXPORT int fake_cuda_launch(uint64_t index, Launch* out) {
  return locked([&](Machine& machine) {
    if (index >= machine.launches.size()) return 0;
    *out = machine.launches[index];
    return 1;
  });
}

FAKE_CUDA_EXPORT uint64_t fake_cuda_calls(const char* function) {
  return locked([&](Machine& machine) {
    uint64_t count = 0;
    for (const auto& [name, calls] : machine.calls) {
      if (function == nullptr || name == function) count += calls;
    }
    return count;
  });
}

FAKE_CUDA_EXPORT void fake_cuda_on_launch(OnLaunch callback, void* user) {
  locked([&](Machine& machine) {
    machine.on_launch = callback;
    machine.on_launch_user = user;
  });
}

FAKE_CUDA_EXPORT void fake_cuda_fail_launch(uint64_t number, int error, unsigned flags) {
  locked([&](Machine& machine) {
    auto& faults = (flags & fault_late) != 0 ? machine.late_launch_faults : machine.launch_faults;
    faults.push_back({.function = {}, .left = number, .error = error, .flags = flags});
  });
}

FAKE_CUDA_EXPORT void fake_cuda_fail_call(const char* function, uint64_t number, int error,
                                          unsigned flags) {
  locked([&](Machine& machine) {
    machine.faults.push_back({.function = function == nullptr ? "" : function,
                              .left = number,
                              .error = error,
                              .flags = flags});
  });
}

FAKE_CUDA_EXPORT void fake_cuda_clear_faults() {
  locked([](Machine& machine) {
    machine.faults.clear();
    machine.launch_faults.clear();
    machine.late_launch_faults.clear();
  });
}

FAKE_CUDA_EXPORT uint64_t fake_cuda_faults_left() {
  return locked([](Machine& machine) -> uint64_t {
    return machine.faults.size() + machine.launch_faults.size() + machine.late_launch_faults.size();
  });
}

FAKE_CUDA_EXPORT uint64_t fake_cuda_live_bytes() {
  return locked([](Machine& machine) {
    uint64_t bytes = 0;
    for (const auto& [address, allocation] : machine.allocations) bytes += allocation.bytes;
    return bytes;
  });
}

FAKE_CUDA_EXPORT uint64_t fake_cuda_pinned_bytes() {
  return locked([](Machine& machine) {
    uint64_t bytes = 0;
    for (const auto& [address, range] : machine.pinned) bytes += range.bytes;
    return bytes;
  });
}

FAKE_CUDA_EXPORT void* fake_cuda_memory(uint64_t address, uint64_t bytes) {
  return locked([&](Machine& machine) -> void* { return machine.memory(address, bytes); });
}

FAKE_CUDA_EXPORT size_t fake_cuda_problems(char* text, size_t size) {
  return locked([&](Machine& machine) { return write_lines(machine.problems, text, size); });
}

FAKE_CUDA_EXPORT size_t fake_cuda_leaks(char* text, size_t size) {
  return locked([&](Machine& machine) {
    std::vector<std::string> lines = machine.leaks;
    for (const std::string& line : machine.living(0)) lines.push_back(line + " lives");
    return write_lines(lines, text, size);
  });
}

}  // namespace quern::fake_cuda
