#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/cpu/cpu_loader.h"
#include "compiler/plan.h"
#include "runtime/backend.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/memory.h"
#include "runtime/weights.h"

namespace quern {

/// A plan's steps with every buffer resolved to an address: made once a session, so that a launch
/// only sets two numbers.
struct BoundSteps {
  std::vector<void*> pointers;  ///< Of all steps, one after the other.
  std::vector<size_t> first;    ///< Where a step's pointers begin.
};

/// Runs plans' steps on the pool. Holds what sessions share because they take turns: activations,
/// token ids, RoPE tables, workers' scratch.
class Executor {
 public:
  /// Throws Error (`does_not_fit`).
  Executor(const Plan& plan, const std::vector<cpu::KernelFunction>& kernels,
           const Weights& weights, cpu::ThreadPool& pool);

  /// `state` and `logits` are the session's own memory.
  BoundSteps bind(std::byte* state, float* logits) const;

  /// Runs all steps for a chunk of at most the plan's size and adds to `launches`, which counts by
  /// launch_names() index. Throws Error (`failed`) where a test's hook says so; nothing else can
  /// fail. Sessions of several threads take turns.
  void run(const BoundSteps& steps, const Chunk& chunk, std::vector<uint32_t>& launches);

  /// "gemm gemv", "gemm tiled", "attention flash", "norm" …
  const std::vector<std::string>& launch_names() const { return names_; }

 private:
  struct Launch {
    cpu::KernelFunction function;
    StepRows rows;
    uint32_t few_tokens;  ///< Up to so many rows the launch counts under `name_few`.
    uint32_t name_few, name_many;
  };
  /// Each launch takes its work from a counter of its own, so that none has to be reset between
  /// launches.
  struct alignas(64) Counter {
    uint32_t next = 0;
  };

  void add_launch(const Step& step);
  void work(const BoundSteps& steps, const Chunk& chunk, size_t n_steps, uint32_t worker);
  void fill_rope_rows(const Chunk& chunk, uint32_t worker);

  const Plan& plan_;
  const std::vector<cpu::KernelFunction>& kernels_;
  const Weights& weights_;
  cpu::ThreadPool& pool_;
  std::mutex mutex_;

  std::vector<Launch> launches_;
  std::vector<std::string> names_;
  std::vector<Counter> counters_;
  ZeroedMemory activations_, scratch_;
  uint64_t scratch_slice_ = 0;
  std::vector<int32_t> tokens_, outputs_;
  std::vector<ZeroedMemory> ropes_;
};

}  // namespace quern
