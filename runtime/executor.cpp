#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "compiler/cpu/cpu_compiler.h"
#include "runtime/rope_row.h"
#include "runtime/test_hooks.h"

namespace quern {

std::function<void(const FinishedStep&)> after_cpu_step;

namespace {

/// The names of a kernel's paths: for up to `few_tokens` rows, and for more.
struct PathNames {
  std::string few, many;
  uint32_t few_tokens = 0;
};

PathNames path_names(const spec::AnySpec& spec) {
  const std::string family(spec_family(spec));
  return std::visit(
      [&family](const auto& s) -> PathNames {
        if constexpr (requires { s.gemv_max_tokens; }) {
          return {family + " gemv", family + " tiled", s.gemv_max_tokens};
        } else if constexpr (requires { s.segment_keys; }) {
          const std::string name =
              family + (s.path == spec::AttentionPath::flash ? " flash" : " wave");
          return {name, name, 0};
        } else {
          return {family, family, 0};
        }
      },
      spec);
}

uint64_t scratch_slice_bytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const PlanKernel& kernel : plan.kernels) {
    bytes = std::max(bytes, cpu::scratch_bytes(kernel.spec, plan.options.chunk));
  }
  return (bytes + 63) / 64 * 64;
}

}  // namespace

Executor::Executor(const Plan& plan, const std::vector<cpu::KernelFunction>& kernels,
                   const Weights& weights, cpu::ThreadPool& pool)
    : plan_(plan), kernels_(kernels), weights_(weights), pool_(pool) {
  for (const Step& step : plan.steps) add_launch(step);
  counters_.resize(plan.steps.size());
  scratch_slice_ = scratch_slice_bytes(plan);
  const uint64_t scratch = scratch_slice_ * pool.size();
  require_memory(plan.arena_bytes + scratch, "activations");
  activations_ = ZeroedMemory(plan.arena_bytes, "activations");
  scratch_ = ZeroedMemory(scratch, "scratch of the worker threads");
  tokens_.resize(plan.options.chunk);
  outputs_.resize(plan.max_outputs);
  for (const Rope& rope : plan.ropes) {
    const uint64_t row_floats = rope.inverse_frequency.size() * 2;
    ropes_.emplace_back(plan.options.chunk * row_floats * sizeof(float), "RoPE table");
  }
}

void Executor::add_launch(const Step& step) {
  const PathNames names = path_names(plan_.kernels[step.kernel].spec);
  launches_.push_back({.function = kernels_[step.kernel],
                       .rows = step.rows,
                       .few_tokens = names.few_tokens,
                       .name_few = index_of_name(names_, names.few),
                       .name_many = index_of_name(names_, names.many)});
}

BoundSteps Executor::bind(std::byte* state, float* logits) const {
  BoundSteps bound;
  const auto address = [&](const BufferRef& ref) -> void* {
    switch (ref.kind) {
      case BufferKind::none:
        return nullptr;
      case BufferKind::activation:
        return activations_.data() + plan_.activations[ref.index].offset;
      case BufferKind::weight:
        return const_cast<void*>(weights_.at(ref.index));  // Kernels only read weights.
      case BufferKind::state:
        return state + plan_.states[ref.index].offset;
      case BufferKind::tokens:
        return const_cast<int32_t*>(tokens_.data());
      case BufferKind::rope:
        return ropes_[ref.index].data();
      case BufferKind::outputs:
        return const_cast<int32_t*>(outputs_.data());
      case BufferKind::logits:
        return logits;
      case BufferKind::wish:
      case BufferKind::candidates:
        return nullptr;  // Of GPU plans alone.
    }
    return nullptr;
  };
  for (const Step& step : plan_.steps) {
    bound.first.push_back(bound.pointers.size());
    for (const BufferRef& ref : step.buffers) bound.pointers.push_back(address(ref));
  }
  return bound;
}

void Executor::fill_rope_rows(const Chunk& chunk, uint32_t worker) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const Rope& rope = plan_.ropes[i];
    const size_t pairs = rope.inverse_frequency.size();
    auto* table = reinterpret_cast<float*>(ropes_[i].data());
    for (size_t row = worker; row < chunk.tokens.size(); row += pool_.size()) {
      fill_rope_row(rope, chunk.start_position + row, table + row * pairs * 2);
    }
  }
}

void Executor::work(const BoundSteps& steps, const Chunk& chunk, size_t n_steps, uint32_t worker) {
  fill_rope_rows(chunk, worker);
  pool_.barrier();
  cpu::KernelArgs args;
  args.start_position = chunk.start_position;
  args.kv_capacity = kv_capacity(plan_.options.context);
  args.worker = worker;
  args.n_workers = pool_.size();
  args.scratch = scratch_.data() + worker * scratch_slice_;
  args.scratch_bytes = scratch_slice_;
  const bool observed = static_cast<bool>(after_cpu_step);
  for (size_t i = 0; i < n_steps; ++i) {
    const Launch& launch = launches_[i];
    args.n_tokens = static_cast<uint32_t>(launch.rows == StepRows::tokens ? chunk.tokens.size()
                                                                          : chunk.outputs.size());
    if (args.n_tokens == 0) continue;
    args.buffers = steps.pointers.data() + steps.first[i];
    args.next_tile = &counters_[i].next;
    launch.function(&args);
    pool_.barrier();
    if (!observed) continue;
    if (worker == 0) after_cpu_step({i, args.n_tokens, args.start_position, args.buffers});
    pool_.barrier();
  }
}

void Executor::run(const BoundSteps& steps, const Chunk& chunk, std::vector<uint32_t>& launches) {
  const std::lock_guard lock(mutex_);
  std::copy(chunk.tokens.begin(), chunk.tokens.end(), tokens_.begin());
  std::copy(chunk.outputs.begin(), chunk.outputs.end(), outputs_.begin());
  std::fill(counters_.begin(), counters_.end(), Counter{});
  const size_t n_steps = steps_before_failure(launches_.size());
  pool_.run([&](uint32_t worker) { work(steps, chunk, n_steps, worker); });
  for (size_t i = 0; i < n_steps; ++i) {
    const Launch& launch = launches_[i];
    const size_t rows =
        launch.rows == StepRows::tokens ? chunk.tokens.size() : chunk.outputs.size();
    if (rows == 0) continue;
    ++launches[rows <= launch.few_tokens ? launch.name_few : launch.name_many];
  }
  if (n_steps < launches_.size()) fail_at_step(plan_, n_steps);
}

}  // namespace quern
