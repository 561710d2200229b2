#include "runtime/engine.h"

#include <fmt/format.h>

#include <chrono>

#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"
#include "runtime/engine_impl.h"
#include "runtime/kernels.h"
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

void check_target(const Target& target) {
  if (target.kind != "cpu") {
    throw Error(ErrorKind::failed, fmt::format("target {} {}", target.kind, target.name),
                "this build runs plans for the CPU alone", "compile with --target native");
  }
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
  check_target(plan.target);
  auto impl = std::make_unique<Impl>(std::move(file), std::move(plan), options.threads);
  impl->kernels = load_kernels(impl->plan, store, compile, impl->pool.size(), options.progress,
                               impl->loader, impl->stats);
  const auto start = std::chrono::steady_clock::now();
  impl->weights = std::make_unique<Weights>(impl->file, impl->plan, impl->kernels, impl->pool,
                                            options.progress);
  impl->executor =
      std::make_unique<Executor>(impl->plan, impl->kernels, *impl->weights, impl->pool);
  impl->stats.weights_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  impl->stats.weight_bytes = impl->weights->bytes();
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
uint32_t Engine::threads() const {
  return impl_->pool.size();
}

}  // namespace quern
