#include "runtime/engine.h"

#include <fmt/format.h>

#include <chrono>

#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"
#include "runtime/clock.h"
#include "runtime/engine_impl.h"
#include "runtime/state_image.h"

namespace quern {
namespace {

void check_fingerprint(const gguf::File& file, const Plan& plan) {
  const std::string fingerprint = file.fingerprint();
  if (fingerprint == plan.model_fingerprint) return;
  throw Error(
      ErrorKind::bad_model, file.name(),
      fmt::format("its fingerprint is {:.12}, and the plan of {} was made for {:.12}", fingerprint,
                  plan.model_name.empty() ? plan.architecture : plan.model_name,
                  plan.model_fingerprint),
      "give the model that the plan was compiled from, or compile a plan for this one");
}

void check_cpu_target(const Target& target) {
  std::string missing;
  if (!cpu::can_run(target, &missing)) {
    throw Error(ErrorKind::failed, fmt::format("target {}", target.name),
                fmt::format("this machine lacks {}", missing),
                "compile the plan for this machine with --target native");
  }
}

}  // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::shared_ptr<Engine> Engine::load(gguf::File file, Plan plan, KernelStore& store,
                                     const KernelCompiler& compile, const EngineOptions& options) {
  check_fingerprint(file, plan);
  const bool gpu = is_cuda(plan.target);
  if (!gpu) check_cpu_target(plan.target);
  auto impl = std::make_unique<Impl>(std::move(file), std::move(plan));
  const auto start = Clock::now();
  impl->backend = (gpu ? load_gpu_backend : load_cpu_backend)(impl->file, impl->plan, store,
                                                              compile, options, impl->stats);
  const auto total = milliseconds_since(start);
  impl->stats.weights_ms = total - impl->stats.compile_ms - impl->stats.load_kernels_ms;
  impl->state_fingerprint = state_fingerprint(impl->plan);
  return std::shared_ptr<Engine>(new Engine(std::move(impl)));
}

const Plan& Engine::plan() const {
  return impl_->plan;
}
const gguf::File& Engine::file() const {
  return impl_->file;
}
const LoadStats& Engine::load_stats() const {
  return impl_->stats;
}
std::vector<std::pair<std::string, uint64_t>> Engine::saturated() const {
  return impl_->backend->saturated();
}
uint32_t Engine::threads() const {
  return impl_->backend->threads();
}

}  // namespace quern
