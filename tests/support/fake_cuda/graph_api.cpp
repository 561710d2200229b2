// The stand-in's functions for stream capture and graphs.

#include <algorithm>

#include "tests/support/fake_cuda/machine.h"

namespace quern::fake_cuda {
namespace {

using cuda::Graph;
using cuda::GraphExec;
using cuda::Stream;

}  // namespace

FAKE_CUDA_EXPORT Result cuStreamBeginCapture_v2(Stream stream, int mode) {
  return call("cuStreamBeginCapture_v2", needs_context, [&](Machine& machine) {
    StreamState* state = machine.find(machine.streams, id_of(stream));
    if (state == nullptr) {
      return machine.problem("cuStreamBeginCapture_v2", "the stream does not live", invalid_handle);
    }
    if (mode < 0 || mode > 2) return invalid_value;
    if (state->capture != nullptr) {
      return machine.problem("cuStreamBeginCapture_v2", "the stream is captured already",
                             capture_unsupported);
    }
    state->capture = std::make_shared<Capture>();
    state->capture->origin = id_of(stream);
    state->capture->mode = mode;
    state->capture->thread = std::this_thread::get_id();
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuStreamEndCapture(Stream stream, Graph* out) {
  return call("cuStreamEndCapture", needs_context | releases, [&](Machine& machine) {
    *out = nullptr;
    StreamState* state = machine.find(machine.streams, id_of(stream));
    if (state == nullptr || state->capture == nullptr) {
      return machine.problem("cuStreamEndCapture", "no capture", invalid_value);
    }
    if (state->capture->origin != id_of(stream)) {
      return machine.problem("cuStreamEndCapture", "on another stream", capture_unmatched);
    }
    const std::shared_ptr<Capture> capture = state->capture;
    for (auto& [id, member] : machine.streams) {
      if (member.capture == capture) member.capture = nullptr;
    }
    if (capture->invalid) return capture_invalidated;
    if (machine.context()->sticky != success) return machine.context()->sticky;
    const Id id = machine.new_id();
    machine.graphs[id] = {.context = machine.current(), .operations = capture->operations};
    *out = handle_of<Graph>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuGraphInstantiateWithFlags(GraphExec* out, Graph graph,
                                                    unsigned long long) {
  return call("cuGraphInstantiateWithFlags", needs_context, [&](Machine& machine) {
    const GraphState* state = machine.find(machine.graphs, id_of(graph));
    if (state == nullptr) {
      return machine.problem("cuGraphInstantiateWithFlags", "the graph does not live",
                             invalid_value);
    }
    const Id id = machine.new_id();
    machine.executables[id] = *state;
    *out = handle_of<GraphExec>(id);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuGraphLaunch(GraphExec executable, Stream stream) {
  return call("cuGraphLaunch", needs_context, [&](Machine& machine) {
    const GraphState* state = machine.find(machine.executables, id_of(executable));
    StreamState* queue = machine.find(machine.streams, id_of(stream));
    if (state == nullptr || queue == nullptr) {
      return machine.problem("cuGraphLaunch", "the graph or the stream does not live",
                             invalid_handle);
    }
    const auto kernels = std::count_if(state->operations.begin(), state->operations.end(),
                                       [](const Operation& node) { return node.launch; });
    const Result fault = machine.refuse_launches(static_cast<uint64_t>(kernels));
    if (fault != success) return fault;
    for (const Operation& node : state->operations) machine.enqueue(*queue, node);
    return success;
  });
}

FAKE_CUDA_EXPORT Result cuGraphExecDestroy(GraphExec executable) {
  return call("cuGraphExecDestroy", needs_context | releases, [&](Machine& machine) {
    if (machine.executables.erase(id_of(executable)) == 1) return success;
    return machine.problem("cuGraphExecDestroy", "the graph does not live", invalid_value);
  });
}

FAKE_CUDA_EXPORT Result cuGraphDestroy(Graph graph) {
  return call("cuGraphDestroy", needs_context | releases, [&](Machine& machine) {
    if (machine.graphs.erase(id_of(graph)) == 1) return success;
    return machine.problem("cuGraphDestroy", "the graph does not live", invalid_value);
  });
}

FAKE_CUDA_AS_BOUND(cuStreamBeginCapture_v2, cuStreamBeginCapture);
FAKE_CUDA_AS_BOUND(cuStreamEndCapture, cuStreamEndCapture);
FAKE_CUDA_AS_BOUND(cuGraphInstantiateWithFlags, cuGraphInstantiate);
FAKE_CUDA_AS_BOUND(cuGraphLaunch, cuGraphLaunch);
FAKE_CUDA_AS_BOUND(cuGraphExecDestroy, cuGraphExecDestroy);
FAKE_CUDA_AS_BOUND(cuGraphDestroy, cuGraphDestroy);

}  // namespace quern::fake_cuda
