#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/cpu/cpu_loader.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/weights.h"

namespace quern {

/// Members in the order in which they depend on each other.
struct Engine::Impl {
  Impl(gguf::File model_file, Plan model_plan, uint32_t threads)
      : pool(threads), file(std::move(model_file)), plan(std::move(model_plan)) {}

  cpu::ThreadPool pool;
  gguf::File file;
  const Plan plan;
  LoadStats stats;
  cpu::KernelLoader loader;
  std::vector<cpu::KernelFunction> kernels;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Executor> executor;
  std::string state_fingerprint;
};

}  // namespace quern
