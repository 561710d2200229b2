#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/gpu_weights.h"
#include "runtime/memory.h"

namespace quern::cuda {

class GpuMemory;

/// A GPU as a backend: kernels, weights and what sessions share because they take turns
/// (activations, inputs, logits, RoPE tables) in device memory, and one stream.
class GpuBackend final : public Backend {
 public:
  GpuBackend(const gguf::File& file, const Plan& plan, std::vector<CompiledKernel> compiled,
             std::shared_ptr<Device> device, cpu::ThreadPool& pool, const Progress& progress);

  std::unique_ptr<SessionMemory> new_session() override;
  const std::vector<std::string>& launch_names() const override { return names_; }
  uint32_t threads() const override { return threads_; }
  std::vector<std::pair<std::string, uint64_t>> saturated() const override;
  SelectionLimits selection_limits() const override;
  uint64_t weight_bytes() const { return weights_->bytes(); }

 private:
  friend class GpuMemory;
  /// A step's kernel for launches of up to `max_rows` rows.
  struct Choice {
    uint32_t max_rows, kernel, name;
  };

  void add_step(const Step& step);
  void upload_ropes(cpu::ThreadPool& pool);
  const Choice& choice(size_t step, uint32_t rows) const;

  /// Everything that works on the stream goes through here: turns, the context, the wait for the
  /// work, and what a failure leaves behind.
  template <class Work>
  void in_turn(Work&& work);
  void note_failure(const std::string& what);
  void note_saturation();

  KernelArgs step_args(const Step& step, const DeviceBuffer& state) const;
  /// Steps that belong to no launch.
  void run_once_steps();
  void launch(const Step& step, uint32_t kernel, uint32_t rows, const KernelArgs& args);
  void run(GpuMemory& memory, const Chunk& chunk);
  void write_inputs(const Chunk& chunk);
  /// Whether a step does not run: the selection, where logits are wanted.
  bool is_left_out(const GpuMemory& memory, size_t step) const;
  uint64_t input_bytes(size_t tokens) const;
  /// Copies the inputs, launches `n_steps` steps, copies what the host wants to see.
  void enqueue(GpuMemory& memory, uint32_t n_tokens, uint32_t n_outputs, size_t n_steps);
  uint32_t rows_of(const Step& step, uint32_t n_tokens, uint32_t n_outputs) const;
  void count(GpuMemory& memory, uint32_t n_tokens, uint32_t n_outputs, size_t n_steps) const;

  const Plan& plan_;
  const spec::SelectSpec* selection_;  ///< The plan's last step, or null.
  std::shared_ptr<Device> device_;
  uint32_t threads_;
  mutable std::mutex mutex_;
  StreamQueue stream_;
  std::vector<LoadedKernel> kernels_;
  std::vector<std::vector<Choice>> choices_;  ///< By step, ascending rows.
  std::vector<std::string> names_;
  uint32_t graph_name_ = 0;
  std::optional<GpuLibrary> library_;  ///< Where the plan has steps for it.
  std::optional<GpuWeights> weights_;
  DeviceBuffer arena_, inputs_, logits_, candidates_, saturated_;
  std::vector<DeviceBuffer> ropes_;
  PinnedBuffer host_inputs_, host_saturated_;
  std::vector<uint32_t> saturated_before_;
  std::string dead_;  ///< What broke the device's context, for good; empty in normal life.
};

/// One session: its state, and the launches of its steps with all addresses resolved.
class GpuMemory final : public SessionMemory {
 public:
  explicit GpuMemory(GpuBackend& backend);
  void run(const Chunk& chunk) override { backend_.run(*this, chunk); }
  const float* logits() const override;
  Candidates candidates() const override;
  void clear() override;
  void copy_from(const SessionMemory& other) override;
  std::vector<std::byte> save(std::string_view fingerprint, uint32_t position) const override;
  void restore(const StateImage& image) override;

 private:
  friend class GpuBackend;
  /// Where `rows` rows of logits go on the host.
  std::span<std::byte> host_logits(uint32_t rows) const;

  GpuBackend& backend_;
  DeviceBuffer state_;
  std::vector<KernelArgs> args_;  ///< By step.
  uint32_t last_outputs_ = 0;
  uint32_t wanted_ = 0;           ///< Candidates of the last run; 0: logits.
  PinnedBuffer pinned_logits_;    ///< Of one row at least; of all where they are few ...
  ZeroedMemory pageable_logits_;  ///< ... and this where they are not.
  PinnedBuffer pinned_candidates_;
  /// A single token's launches, recorded: without logits, with them, with candidates.
  std::unique_ptr<LaunchGraph> graphs_[3];
};

}  // namespace quern::cuda
