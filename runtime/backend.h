#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "runtime/selection.h"
#include "runtime/state_image.h"

namespace quern {

/// One chunk of one sequence.
struct Chunk {
  std::span<const int32_t> tokens;
  std::span<const int32_t> outputs;  ///< Rows within the chunk whose logits are wanted, ascending.
  uint32_t start_position = 0;
  /// Candidates of the last output row are wanted, and no logits: within the backend's limits.
  const SelectionRequest* selection = nullptr;
};

/// A session's memory where its plan runs, and the launches bound to it. One thread at a time;
/// sessions of one backend take turns by themselves.
class SessionMemory {
 public:
  virtual ~SessionMemory() = default;

  /// Runs all steps for a chunk of at most the plan's size and waits for them. Throws Error
  /// (`failed`) where the device fails; the state is then of no use until `clear`.
  virtual void run(const Chunk& chunk) = 0;
  /// Of the last run, unless candidates were wanted: [outputs][vocabulary].
  virtual const float* logits() const = 0;
  /// Of the last run, which wanted them.
  virtual Candidates candidates() const { return {}; }
  /// Launch counts since `forget_launches`, by Backend::launch_names() index.
  const std::vector<uint32_t>& launches() const { return launches_; }
  void forget_launches() { std::fill(launches_.begin(), launches_.end(), 0U); }

  /// The state of a sequence without tokens, whatever has happened before.
  virtual void clear() = 0;
  /// `other` is a memory of the same backend.
  virtual void copy_from(const SessionMemory& other) = 0;
  virtual std::vector<std::byte> save(std::string_view fingerprint, uint32_t position) const = 0;
  virtual void restore(const StateImage& image) = 0;

 protected:
  std::vector<uint32_t> launches_;
};

/// What executes a plan: the CPU's thread pool or a GPU, with the plan's kernels loaded and its
/// weights in place. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Throws Error (`does_not_fit`).
  virtual std::unique_ptr<SessionMemory> new_session() = 0;
  /// Names of the kernels' paths: "gemm gemv", "gemm tiled", "attention flash", "norm" …
  virtual const std::vector<std::string>& launch_names() const = 0;
  virtual uint32_t threads() const = 0;
  virtual SelectionLimits selection_limits() const { return {}; }
  /// Steps whose f16 operands had to be clamped since the model was loaded, with the number of
  /// values.
  virtual std::vector<std::pair<std::string, uint64_t>> saturated() const { return {}; }
};

/// Both take references that outlive the backend, and fill `stats`.
std::unique_ptr<Backend> load_cpu_backend(const gguf::File& file, const Plan& plan,
                                          KernelStore& store, const KernelCompiler& compile,
                                          const EngineOptions& options, LoadStats& stats);
std::unique_ptr<Backend> load_gpu_backend(const gguf::File& file, const Plan& plan,
                                          KernelStore& store, const KernelCompiler& compile,
                                          const EngineOptions& options, LoadStats& stats);

/// Where `name` stands in a backend's launch names; it is added where it does not.
uint32_t index_of_name(std::vector<std::string>& names, const std::string& name);

/// Counts the launches of a run of `n_steps` for the test hook (runtime/test_hooks.h): how many of
/// them may run before the injected failure; all of them in normal life.
size_t steps_before_failure(size_t n_steps);
/// Throws the injected failure of a plan's step.
[[noreturn]] void fail_at_step(const Plan& plan, size_t step);

}  // namespace quern
