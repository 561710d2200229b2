#include <algorithm>
#include <limits>
#include <numeric>

#include "compiler/device_sizes.h"
#include "compiler/passes/passes.h"

namespace quern::passes {

namespace {

constexpr uint64_t alignment = 64;

uint64_t align_up(uint64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// First and last launch that touch a buffer; a buffer no launch touches has first > last.
struct Life {
  size_t first = std::numeric_limits<size_t>::max(), last = 0;
  bool used() const { return first <= last; }
  bool meets(const Life& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Life> lives(const Program& program) {
  std::vector<Life> result(program.activations.size());
  for (size_t step = 0; step < program.launches.size(); ++step) {
    for (const BufferRef& buffer : program.launches[step].buffers) {
      if (buffer.kind != BufferKind::activation) continue;
      Life& life = result[buffer.index];
      life.first = std::min(life.first, step);
      life.last = std::max(life.last, step);
    }
  }
  for (size_t i = 0; i < result.size(); ++i) {
    // Counters keep their zeros from launch to launch, what is made once stays as it is.
    const ActivationForm form = program.activations[i].form;
    if ((form == ActivationForm::counters || form == ActivationForm::kept) && result[i].used()) {
      result[i] = {0, program.launches.size()};
    }
  }
  return result;
}

/// Drops activations that no launch touches.
void drop_unused(Program& program) {
  const std::vector<Life> now = lives(program);
  std::vector<uint32_t> renumbered(program.activations.size());
  std::vector<ActivationBuffer> kept;
  for (size_t i = 0; i < program.activations.size(); ++i) {
    renumbered[i] = static_cast<uint32_t>(kept.size());
    if (now[i].used()) kept.push_back(std::move(program.activations[i]));
  }
  program.activations = std::move(kept);
  for (Program::Launch& launch : program.launches) {
    for (BufferRef& buffer : launch.buffers) {
      if (buffer.kind == BufferKind::activation) buffer.index = renumbered[buffer.index];
    }
  }
}

/// Largest first, each at the lowest offset where it meets no buffer that lives at the same time.
void place_activations(Program& program, const Sizes& sizes) {
  const std::vector<Life> now = lives(program);
  auto& buffers = program.activations;
  for (ActivationBuffer& buffer : buffers) {
    buffer.bytes = activation_bytes(buffer, sizes.chunk, sizes.max_outputs);
  }
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return buffers[a].bytes != buffers[b].bytes ? buffers[a].bytes > buffers[b].bytes : a < b;
  });
  std::vector<size_t> placed;  // By ascending offset.
  program.arena_bytes = 0;
  for (const size_t index : order) {
    uint64_t offset = 0;
    for (const size_t other : placed) {
      if (!now[index].meets(now[other])) continue;
      if (offset + buffers[index].bytes <= buffers[other].offset) break;
      offset = std::max(offset, align_up(buffers[other].offset + buffers[other].bytes));
    }
    buffers[index].offset = offset;
    program.arena_bytes = std::max(program.arena_bytes, align_up(offset + buffers[index].bytes));
    const auto at = std::ranges::upper_bound(placed, offset, {},
                                             [&](size_t other) { return buffers[other].offset; });
    placed.insert(at, index);
  }
}

void place_states(Program& program, const Sizes& sizes, const Target& target) {
  for (const Program::Launch& launch : program.launches) {
    const auto* attention = std::get_if<spec::AttentionSpec>(&launch.spec);
    if (attention == nullptr) continue;
    const uint32_t dims[2] = {attention->head_dim, attention->value_dim};
    for (size_t i = 0; i < 2; ++i) {
      program.states[launch.buffers[1 + i].index].bytes =
          kv_cache_bytes(target, attention->kv, attention->n_head_kv, dims[i], sizes.kv_capacity);
    }
  }
  program.state_bytes = 0;
  for (StateBuffer& state : program.states) {
    state.offset = program.state_bytes;
    program.state_bytes = align_up(program.state_bytes + state.bytes);
  }
}

}  // namespace

void add_residuals_in_place(Program& program) {
  for (size_t step = 0; step < program.launches.size(); ++step) {
    Program::Launch& launch = program.launches[step];
    if (!std::holds_alternative<spec::GemmSpec>(launch.spec)) continue;
    const BufferRef y = launch.buffers[1], residual = launch.buffers[2];
    if (y.kind != BufferKind::activation || residual.kind != BufferKind::activation) continue;
    if (launch.buffers[0].kind == BufferKind::activation &&
        launch.buffers[0].index == residual.index) {
      continue;
    }
    const std::vector<Life> now = lives(program);
    const ActivationBuffer& a = program.activations[y.index];
    const ActivationBuffer& b = program.activations[residual.index];
    if (now[residual.index].last != step || now[y.index].first != step || a.form != b.form ||
        a.bytes_per_row != b.bytes_per_row || a.fixed_bytes != b.fixed_bytes ||
        a.selected != b.selected) {
      continue;
    }
    for (size_t later = step; later < program.launches.size(); ++later) {
      for (BufferRef& buffer : program.launches[later].buffers) {
        if (buffer.kind == BufferKind::activation && buffer.index == y.index) buffer = residual;
      }
    }
  }
}

void lay_out(Program& program, const Sizes& sizes, const Target& target) {
  add_residuals_in_place(program);
  drop_unused(program);
  place_activations(program, sizes);
  place_states(program, sizes, target);
  for (WeightBinding& weight : program.weights) weight.bytes = weight_bytes(target, weight);
}

}  // namespace quern::passes
