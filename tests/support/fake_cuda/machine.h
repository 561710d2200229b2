#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/cuda/driver.h"
#include "tests/support/fake_cuda/control.h"

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))
/// A function here takes what the runtime passes to it.
#define FAKE_CUDA_AS_BOUND(exported, member) \
  static_assert(std::is_same_v<decltype(&exported), decltype(cuda::Driver::member)>)

// The machine that the stand-in driver pretends to drive. Work is queued on streams and runs as
// late as the API allows (at a synchronisation), so that a missing one shows. Device addresses are
// no host addresses, and neither they nor handles are used twice.
namespace quern::fake_cuda {

using cuda::DevicePointer;
using cuda::Result;

// CUresult values.
inline constexpr Result success = 0, invalid_value = 1, out_of_memory = 2, not_initialised = 3,
                        no_device = 100, invalid_device = 101, invalid_image = 200,
                        invalid_context = 201, invalid_handle = 400, not_found = 500,
                        not_ready = 600, illegal_address = 700, launch_failed = 719,
                        context_destroyed = 709, already_registered = 712, not_registered = 713,
                        not_supported = 801, capture_unsupported = 900, capture_invalidated = 901,
                        capture_unmatched = 903, capture_isolation = 905, captured_event = 907,
                        unknown = 999;

using Id = uint64_t;  ///< A handle as a number; 0: none.

template <class Handle>
Id id_of(Handle handle) {
  return reinterpret_cast<Id>(handle);
}
template <class Handle>
Handle handle_of(Id id) {
  return reinterpret_cast<Handle>(id);
}

/// Work of a stream or a node of a graph.
struct Operation {
  std::function<void()> run;
  bool launch = false;
};

struct Capture {
  Id origin = 0;  ///< The stream that it began on.
  int mode = 0;   ///< 0 global, 1 thread-local, 2 relaxed.
  std::thread::id thread;
  bool invalid = false;
  std::vector<Operation> operations;
};

struct StreamState {
  Id context = 0;
  unsigned flags = 0;
  std::deque<Operation> queue;
  std::shared_ptr<Capture> capture;
};

struct EventState {
  Id context = 0;
  unsigned flags = 0;
  Id stream = 0;
  uint64_t recorded = 0, done = 0;  ///< The newest record: asked for, reached.
  std::chrono::steady_clock::time_point at;
  std::shared_ptr<Capture> capture;  ///< Where its newest record was captured.
};

struct ModuleState {
  Id context = 0;
  std::string kernel;
};

struct FunctionState {
  Id module = 0;
  int dynamic_shared = 48 * 1024;
};

struct GraphState {
  Id context = 0;
  std::vector<Operation> operations;
};

struct Allocation {
  Id context = 0;
  uint64_t bytes = 0;
  std::unique_ptr<std::byte[]> data;
};

struct Pinned {
  Id context = 0;
  uint64_t bytes = 0;
  bool registered = false;  ///< The caller's own memory.
};

struct ContextState {
  int device = 0;
  Result sticky = success;   ///< What every call returns.
  Result pending = success;  ///< What the next synchronisation returns.
};

struct DeviceState {
  Id context = 0;
  unsigned retained = 0;
  uint64_t used = 0;
};

struct Settings {
  uint64_t memory = uint64_t{8} << 30;
  int compute_capability = 90, version = 13000, devices = 1, multiprocessors = 132;
  Result start = success;  ///< What cuInit returns.
};

struct CallFault {
  std::string function;  ///< Empty: any that needs a context.
  uint64_t left = 0;
  Result error = success;
  unsigned flags = 0;
};

/// What a call asks for before its body runs.
enum Needs : unsigned {
  needs_nothing = 0,
  needs_start = 1,        ///< cuInit was called.
  needs_context = 2 | 1,  ///< A context is current in this thread and has not failed.
  releases = 4,           ///< Runs in a failed context as well, and then returns its failure.
  not_in_a_capture = 8,   ///< Invalidates a capture that is not relaxed.
};

class Machine {
 public:
  static Machine& get();

  std::recursive_mutex mutex;
  Settings settings;
  bool started = false;
  std::map<int, DeviceState> devices;
  std::map<Id, ContextState> contexts;
  std::map<Id, StreamState> streams;
  std::map<Id, EventState> events;
  std::map<Id, ModuleState> modules;
  std::map<Id, FunctionState> functions;
  std::map<Id, GraphState> graphs, executables;
  std::map<uint64_t, Allocation> allocations;
  std::map<uintptr_t, Pinned> pinned;

  std::vector<Launch> launches;
  std::map<std::string, uint64_t> calls;
  std::vector<CallFault> faults, launch_faults, late_launch_faults;
  std::vector<std::string> problems, leaks;
  OnLaunch on_launch = nullptr;
  void* on_launch_user = nullptr;

  void reset();
  Id new_id() { return next_id_ += 16; }
  /// Notes a misuse and returns `result`.
  Result problem(const char* function, const std::string& text, Result result);

  // ---- contexts ----
  Id& current();  ///< This thread's.
  ContextState* context() { return find(contexts, current()); }
  void destroy_context(Id context);
  /// Everything that lives in a context (0: in any), a line each.
  std::vector<std::string> living(Id context) const;

  // ---- memory ----
  Result allocate(uint64_t bytes, DevicePointer* out);
  Result release(const char* function, DevicePointer address);
  /// The memory behind an address, null where the range lies in no allocation.
  std::byte* memory(DevicePointer address, uint64_t bytes);
  enum class HostRange { pageable, page_locked, beyond };
  HostRange host_range(const void* address, uint64_t bytes) const;

  // ---- streams ----
  /// Queues work, or adds it to the stream's capture.
  void enqueue(StreamState& stream, Operation operation);
  /// Runs what is queued; with `event` only until its record number `record` is reached.
  void drain(StreamState& stream, const EventState* event = nullptr, uint64_t record = 0);
  void drain_all();
  /// What a synchronisation of the current context returns.
  Result outcome();
  void fail(Id context, Result error, unsigned flags);

  // ---- launches ----
  /// The error that a fault gives one of the next `count` launches at once.
  Result refuse_launches(uint64_t count);
  void run_launch(Id context, Launch launch);

  /// Everything around a call's body.
  Result before(const char* function, unsigned needs, bool& run_body);

  template <class Map>
  static auto find(Map& map, Id id) -> decltype(&map.begin()->second) {
    const auto at = map.find(id);
    return at == map.end() ? nullptr : &at->second;
  }

 private:
  Machine();
  void configure();
  Result injected(const char* function, unsigned needs);
  bool capture_forbids();

  Id next_id_ = 0x1000;
  uint64_t next_address_ = uint64_t{1} << 60;  ///< No address of any x86 or Arm process.
};

/// A function of the driver API: locks the machine, counts, applies faults, runs the body.
template <class Body>
Result call(const char* function, unsigned needs, Body&& body) noexcept {
  try {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    bool run_body = true;
    const Result early = machine.before(function, needs, run_body);
    if (!run_body) return early;
    const Result result = body(machine);
    return early != success ? early : result;
  } catch (...) {
    return unknown;
  }
}

}  // namespace quern::fake_cuda
