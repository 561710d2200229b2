// The CPU as a backend: the executor on a thread pool, states in zeroed memory.

#include <fmt/format.h>

#include <algorithm>

#include "compiler/cpu/cpu_loader.h"
#include "runtime/backend.h"
#include "runtime/clock.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/executor.h"
#include "runtime/kernels.h"
#include "runtime/weights.h"

namespace quern {
namespace {

class CpuMemory final : public SessionMemory {
 public:
  CpuMemory(const Plan& plan, Executor& executor) : executor_(executor) {
    const uint64_t logits_bytes = uint64_t{plan.max_outputs} * plan.vocabulary * sizeof(float);
    require_memory(plan.state_bytes + logits_bytes, "state of the session");
    state_ = ZeroedMemory(plan.state_bytes, "state of the session");
    logits_ = ZeroedMemory(logits_bytes, "logits of the session");
    steps_ = executor.bind(state_.data(), reinterpret_cast<float*>(logits_.data()));
    launches_.assign(executor.launch_names().size(), 0);
  }

  void run(const Chunk& chunk) override { executor_.run(steps_, chunk, launches_); }
  const float* logits() const override { return reinterpret_cast<const float*>(logits_.data()); }
  void clear() override { state_.clear(); }
  void copy_from(const SessionMemory& other) override {
    copy_nonzero(static_cast<const CpuMemory&>(other).state_.bytes(), state_.bytes());
  }
  std::vector<std::byte> save(std::string_view fingerprint, uint32_t position) const override {
    return encode_state(state_.bytes(), fingerprint, position);
  }
  void restore(const StateImage& image) override {
    state_.clear();
    for (const StateImage::Run& run : image.runs) {
      std::copy(run.bytes.begin(), run.bytes.end(),
                state_.data() + static_cast<ptrdiff_t>(run.offset));
    }
  }

 private:
  Executor& executor_;
  ZeroedMemory state_, logits_;
  BoundSteps steps_;
};

/// Members in the order in which they depend on each other.
class CpuBackend final : public Backend {
 public:
  CpuBackend(const gguf::File& file, const Plan& plan, KernelStore& store,
             const KernelCompiler& compile, const EngineOptions& options, LoadStats& stats)
      : plan_(plan),
        pool_(options.threads),
        kernels_(load(store, compile, options, stats)),
        weights_(file, plan, kernels_, pool_, options.progress),
        executor_(plan, kernels_, weights_, pool_) {
    stats.weight_bytes = weights_.bytes();
  }

  std::unique_ptr<SessionMemory> new_session() override {
    return std::make_unique<CpuMemory>(plan_, executor_);
  }
  const std::vector<std::string>& launch_names() const override { return executor_.launch_names(); }
  uint32_t threads() const override { return pool_.size(); }

 private:
  std::vector<cpu::KernelFunction> load(KernelStore& store, const KernelCompiler& compile,
                                        const EngineOptions& options, LoadStats& stats) {
    const auto kernels =
        fetch_kernels(plan_, store, compile, pool_.size(), options.progress, stats);
    const auto start = Clock::now();
    std::vector<cpu::KernelFunction> functions;
    functions.reserve(kernels.size());
    for (const CompiledKernel& kernel : kernels) functions.push_back(loader_.load(kernel));
    stats.load_kernels_ms += milliseconds_since(start);
    return functions;
  }

  const Plan& plan_;
  cpu::ThreadPool pool_;
  cpu::KernelLoader loader_;
  std::vector<cpu::KernelFunction> kernels_;
  Weights weights_;
  Executor executor_;
};

}  // namespace

std::unique_ptr<Backend> load_cpu_backend(const gguf::File& file, const Plan& plan,
                                          KernelStore& store, const KernelCompiler& compile,
                                          const EngineOptions& options, LoadStats& stats) {
  return std::make_unique<CpuBackend>(file, plan, store, compile, options, stats);
}

}  // namespace quern
