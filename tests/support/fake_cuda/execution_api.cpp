// The stand-in's functions for streams, events, modules and launches.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/support/fake_cuda/machine.h"

namespace quern::fake_cuda {
namespace {

using Event = cuda::EventTag*;
using cuda::Function;
using cuda::Module;
using cuda::Stream;

constexpr int attribute_dynamic_shared = 8;
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
constexpr int attribute_early = 6;
constexpr uint32_t block_threads = 1024, block_shared = 227 * 1024, processor_shared = 228 * 1024;

StreamState* stream_of(Machine& machine, const char* function, Stream stream) {
  StreamState* state = machine.find(machine.streams, id_of(stream));
  if (state == nullptr) machine.problem(function, "the stream does not live", invalid_handle);
  return state;
}

EventState* event_of(Machine& machine, const char* function, Event event) {
  EventState* state = machine.find(machine.events, id_of(event));
  if (state == nullptr) machine.problem(function, "the event does not live", invalid_handle);
  return state;
}

/// A capturing stream may not be waited for: that spoils the capture.
Result refuse_capture(Machine& machine, const char* function, const StreamState& stream) {
  if (stream.capture == nullptr) return success;
  stream.capture->invalid = true;
  return machine.problem(function, "the stream is captured", capture_unsupported);
}

/// Waits until an event's newest record is reached.
void reach(Machine& machine, const EventState& event) {
  StreamState* stream = machine.find(machine.streams, event.stream);
  if (stream != nullptr) machine.drain(*stream, &event, event.recorded);
}

}  // namespace

FAKE_CUDA_EXPORT Result cuStreamCreate(Stream* out, unsigned flags) {
  return call(__func__, needs_context, [&](Machine& machine) {
    const Id id = machine.new_id();
    StreamState& stream = machine.streams[id];
    stream.context = machine.current();
    stream.flags = flags;
    *out = handle_of<Stream>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuStreamDestroy_v2(Stream stream) {
  return call("cuStreamDestroy_v2", needs_context | releases, [&](Machine& machine) {
    StreamState* state = stream_of(machine, "cuStreamDestroy_v2", stream);
    if (state == nullptr) return invalid_handle;
    machine.drain(*state);
    machine.streams.erase(id_of(stream));
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuStreamSynchronize(Stream stream) {
  return call("cuStreamSynchronize", needs_context, [&](Machine& machine) {
    StreamState* state = stream_of(machine, "cuStreamSynchronize", stream);
    if (state == nullptr) return invalid_handle;
    const Result refused = refuse_capture(machine, "cuStreamSynchronize", *state);
    if (refused != success) return refused;
    machine.drain(*state);
    return machine.outcome();
  });
}

/// Every query lets one piece of work happen, so that polling ends.
FAKE_CUDA_EXPORT Result cuStreamQuery(Stream stream) {
  return call("cuStreamQuery", needs_context, [&](Machine& machine) {
    StreamState* state = stream_of(machine, "cuStreamQuery", stream);
    if (state == nullptr) return invalid_handle;
    const Result refused = refuse_capture(machine, "cuStreamQuery", *state);
    if (refused != success) return refused;
    if (state->queue.empty()) return machine.outcome();
    const Operation operation = std::move(state->queue.front());
    state->queue.pop_front();
    operation.run();
    return not_ready;
  });
}

FAKE_CUDA_EXPORT Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  return call("cuStreamWaitEvent", needs_context, [&](Machine& machine) {
    StreamState* waiting = stream_of(machine, "cuStreamWaitEvent", stream);
    const EventState* state = event_of(machine, "cuStreamWaitEvent", event);
    if (waiting == nullptr || state == nullptr) return invalid_handle;
    if (state->capture != nullptr) {  // the stream joins the capture
      waiting->capture = state->capture;
      return success;
    }
    if (state->recorded == 0) return success;
    if (waiting->capture != nullptr) {
      waiting->capture->invalid = true;
      return machine.problem("cuStreamWaitEvent", "a captured stream on an event of no capture",
                             capture_isolation);
    }
    const Id id = id_of(event);
    const uint64_t record = state->recorded;
    machine.enqueue(*waiting, {[&machine, id, record] {
      const EventState* awaited = machine.find(machine.events, id);
      if (awaited == nullptr || awaited->done >= record) return;
      StreamState* source = machine.find(machine.streams, awaited->stream);
      if (source != nullptr) machine.drain(*source, awaited, record);
    }});
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuEventCreate(Event* out, unsigned flags) {
  return call(__func__, needs_context, [&](Machine& machine) {
    const Id id = machine.new_id();
    EventState& event = machine.events[id];
    event.context = machine.current();
    event.flags = flags;
    *out = handle_of<Event>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuEventDestroy_v2(Event event) {
  return call("cuEventDestroy_v2", needs_context | releases, [&](Machine& machine) {
    const EventState* state = event_of(machine, "cuEventDestroy_v2", event);
    if (state == nullptr) return invalid_handle;
    reach(machine, *state);
    machine.events.erase(id_of(event));
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuEventRecord(Event event, Stream stream) {
  return call("cuEventRecord", needs_context, [&](Machine& machine) {
    StreamState* queue = stream_of(machine, "cuEventRecord", stream);
    EventState* state = event_of(machine, "cuEventRecord", event);
    if (queue == nullptr || state == nullptr) return invalid_handle;
    state->capture = queue->capture;
    if (queue->capture != nullptr) return success;
    if (state->stream != id_of(stream)) reach(machine, *state);  // an older record elsewhere
    state->stream = id_of(stream);
    const uint64_t record = ++state->recorded;
    const Id id = id_of(event);
    machine.enqueue(*queue, {[&machine, id, record] {
      EventState* reached = machine.find(machine.events, id);
      if (reached == nullptr) return;
      reached->done = record;
      reached->at = std::chrono::steady_clock::now();
    }});
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuEventSynchronize(Event event) {
  return call("cuEventSynchronize", needs_context, [&](Machine& machine) {
    const EventState* state = event_of(machine, "cuEventSynchronize", event);
    if (state == nullptr) return invalid_handle;
    if (state->capture != nullptr) {
      state->capture->invalid = true;
      return machine.problem("cuEventSynchronize", "the event is captured", captured_event);
    }
    reach(machine, *state);
    return machine.outcome();
  });
}

FAKE_CUDA_EXPORT Result cuEventQuery(Event event) {
  return call("cuEventQuery", needs_context, [&](Machine& machine) {
    const EventState* state = event_of(machine, "cuEventQuery", event);
    if (state == nullptr) return invalid_handle;
    if (state->capture != nullptr) {
      state->capture->invalid = true;
      return machine.problem("cuEventQuery", "the event is captured", captured_event);
    }
    if (state->done >= state->recorded) return machine.outcome();
    StreamState* stream = machine.find(machine.streams, state->stream);
    if (stream == nullptr || stream->queue.empty()) return machine.outcome();
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    operation.run();
    return not_ready;
  });
}

FAKE_CUDA_EXPORT Result cuEventElapsedTime(float* ms, Event begin, Event end) {
  return call("cuEventElapsedTime", needs_context, [&](Machine& machine) {
    const EventState* first = event_of(machine, "cuEventElapsedTime", begin);
    const EventState* last = event_of(machine, "cuEventElapsedTime", end);
    if (first == nullptr || last == nullptr) return invalid_handle;
    constexpr unsigned no_timing = 2;
    if (((first->flags | last->flags) & no_timing) != 0) return invalid_handle;
    if (first->recorded == 0 || last->recorded == 0) return invalid_handle;
    if (first->done < first->recorded || last->done < last->recorded) return not_ready;
    *ms = std::chrono::duration<float, std::milli>(last->at - first->at).count();
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuModuleLoadData(Module* out, const void* image) {
  return call(__func__, needs_context | not_in_a_capture, [&](Machine& machine) {
    if (image == nullptr || std::memcmp(image, cubin_ident, 4) != 0) return invalid_image;
    const Id id = machine.new_id();
    ModuleState& module = machine.modules[id];
    module.context = machine.current();
    if (std::memcmp(image, cubin_ident, sizeof(cubin_ident)) == 0) {
      module.kernel = static_cast<const char*>(image) + sizeof(cubin_ident);
    }
    *out = handle_of<Module>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuModuleUnload(Module module) {
  return call("cuModuleUnload", needs_context | releases | not_in_a_capture, [&](Machine& machine) {
    if (machine.find(machine.modules, id_of(module)) == nullptr) {
      return machine.problem("cuModuleUnload", "the module does not live", invalid_handle);
    }
    machine.drain_all();
    std::erase_if(machine.functions,
                  [&](const auto& entry) { return entry.second.module == id_of(module); });
    machine.modules.erase(id_of(module));
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuModuleGetFunction(Function* out, Module module, const char* name) {
  return call("cuModuleGetFunction", needs_context, [&](Machine& machine) {
    if (machine.find(machine.modules, id_of(module)) == nullptr) {
      return machine.problem("cuModuleGetFunction", "the module does not live", invalid_handle);
    }
    if (name == nullptr || std::strcmp(name, cuda::kernel_symbol) != 0) return not_found;
    const Id id = machine.new_id();
    machine.functions[id].module = id_of(module);
    *out = handle_of<Function>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuFuncSetAttribute(Function function, int attribute, int value) {
  return call("cuFuncSetAttribute", needs_context, [&](Machine& machine) {
    FunctionState* state = machine.find(machine.functions, id_of(function));
    if (state == nullptr) {
      return machine.problem("cuFuncSetAttribute", "the function does not live", invalid_handle);
    }
    if (attribute != attribute_dynamic_shared) return success;
    if (value < 0 || static_cast<uint32_t>(value) > block_shared) return invalid_value;
    state->dynamic_shared = value;
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuFuncGetAttribute(int* value, int attribute, Function function) {
  return call("cuFuncGetAttribute", needs_context, [&](Machine& machine) {
    const FunctionState* state = machine.find(machine.functions, id_of(function));
    if (state == nullptr) {
      return machine.problem("cuFuncGetAttribute", "the function does not live", invalid_handle);
    }
    switch (attribute) {
      case 0:
        *value = block_threads;
        break;  // threads of a block
      case 4:
        *value = 64;
        break;  // registers
      case attribute_dynamic_shared:
        *value = state->dynamic_shared;
        break;
      default:
        *value = 0;
    }
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function function,
                                                                    int threads, size_t shared) {
  return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", needs_context, [&](Machine& machine) {
    if (machine.find(machine.functions, id_of(function)) == nullptr) return invalid_handle;
    if (threads <= 0) return invalid_value;
    const size_t by_threads = 2048 / static_cast<size_t>(threads);
    const size_t by_shared = processor_shared / (shared + 1024);
    *blocks = static_cast<int>(std::min(by_threads, by_shared));
    return success;
  });
}

namespace {

/// Takes a launch's attributes into its record.
Result take_attributes(Machine& machine, const cuda::LaunchConfig& config, Launch& record) {
  for (unsigned i = 0; i < config.n_attributes; ++i) {
    const cuda::LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id != attribute_early) {
      return machine.problem("cuLaunchKernelEx", fmt::format("attribute {}", attribute.id),
                             invalid_value);
    }
    record.early = attribute.value.number != 0 ? 1 : 0;
    if (record.early != 0 && machine.settings.compute_capability < 90) {
      return machine.problem("cuLaunchKernelEx", "early begins need sm_90", not_supported);
    }
  }
  return success;
}

Result launch(const char* function_name, Function function, Launch record, Stream stream,
              void** parameters, const cuda::LaunchConfig* config = nullptr) {
  return call(function_name, needs_context, [&](Machine& machine) -> Result {
    const auto refuse = [&](const char* why, Result result) {
      return machine.problem(function_name, why, result);
    };
    const FunctionState* state = machine.find(machine.functions, id_of(function));
    if (state == nullptr) return refuse("the function does not live", invalid_handle);
    StreamState* queue = stream_of(machine, function_name, stream);
    if (queue == nullptr) return invalid_handle;
    const ModuleState& module = machine.modules.at(state->module);
    if (module.context != queue->context) return refuse("a stream elsewhere", invalid_handle);
    if (parameters == nullptr || parameters[0] == nullptr)
      return refuse("no arguments", invalid_value);
    uint64_t threads = 1;
    for (const uint32_t size : record.block) threads *= size;
    if (threads == 0 || threads > block_threads) return refuse("threads of a block", invalid_value);
    if (record.grid[0] == 0 || record.grid[1] == 0 || record.grid[2] == 0 ||
        record.grid[0] > 0x7fffffff || record.grid[1] > 65535 || record.grid[2] > 65535) {
      return refuse("the grid's size", invalid_value);
    }
    if (record.shared_bytes > static_cast<uint32_t>(state->dynamic_shared)) {
      return refuse("more shared memory than the function was given", invalid_value);
    }
    if (config != nullptr) {
      const Result refused = take_attributes(machine, *config, record);
      if (refused != success) return refused;
    }
    if (const Result fault = machine.refuse_launches(1); fault != success) return fault;
    std::strncpy(record.kernel, module.kernel.c_str(), sizeof(record.kernel) - 1);
    std::memcpy(&record.args, parameters[0], sizeof(record.args));
    record.in_graph = queue->capture != nullptr ? 1 : 0;
    const Id context = queue->context;
    machine.enqueue(*queue,
                    {[&machine, context, record] { machine.run_launch(context, record); }, true});
    return success;
  });
}

}  // namespace

FAKE_CUDA_EXPORT Result cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned block_x, unsigned block_y,
                                       unsigned block_z, unsigned shared_bytes, Stream stream,
                                       void** parameters, void**) {
  Launch record{};
  record.grid[0] = grid_x, record.grid[1] = grid_y, record.grid[2] = grid_z;
  record.block[0] = block_x, record.block[1] = block_y, record.block[2] = block_z;
  record.shared_bytes = shared_bytes;
  return launch("cuLaunchKernel", function, record, stream, parameters);
}

FAKE_CUDA_EXPORT Result cuLaunchKernelEx(const cuda::LaunchConfig* config, Function function,
                                         void** parameters, void**) {
  Launch record{};
  record.grid[0] = config->grid_x, record.grid[1] = config->grid_y, record.grid[2] = config->grid_z;
  record.block[0] = config->block_x, record.block[1] = config->block_y;
  record.block[2] = config->block_z;
  record.shared_bytes = config->shared_bytes;
  return launch("cuLaunchKernelEx", function, record, config->stream, parameters, config);
}

FAKE_CUDA_AS_BOUND(cuStreamCreate, cuStreamCreate);
FAKE_CUDA_AS_BOUND(cuStreamDestroy_v2, cuStreamDestroy);
FAKE_CUDA_AS_BOUND(cuStreamSynchronize, cuStreamSynchronize);
FAKE_CUDA_AS_BOUND(cuStreamWaitEvent, cuStreamWaitEvent);
FAKE_CUDA_AS_BOUND(cuEventCreate, cuEventCreate);
FAKE_CUDA_AS_BOUND(cuEventDestroy_v2, cuEventDestroy);
FAKE_CUDA_AS_BOUND(cuEventRecord, cuEventRecord);
FAKE_CUDA_AS_BOUND(cuEventSynchronize, cuEventSynchronize);
FAKE_CUDA_AS_BOUND(cuEventElapsedTime, cuEventElapsedTime);
FAKE_CUDA_AS_BOUND(cuModuleLoadData, cuModuleLoadData);
FAKE_CUDA_AS_BOUND(cuModuleUnload, cuModuleUnload);
FAKE_CUDA_AS_BOUND(cuModuleGetFunction, cuModuleGetFunction);
FAKE_CUDA_AS_BOUND(cuFuncSetAttribute, cuFuncSetAttribute);
FAKE_CUDA_AS_BOUND(cuLaunchKernelEx, cuLaunchKernelEx);

}  // namespace quern::fake_cuda
