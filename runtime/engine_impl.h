#pragma once

#include <memory>
#include <string>

#include "runtime/backend.h"
#include "runtime/engine.h"

namespace quern {

/// Members in the order in which they depend on each other.
struct Engine::Impl {
  Impl(gguf::File model_file, Plan model_plan)
      : file(std::move(model_file)), plan(std::move(model_plan)) {}

  gguf::File file;
  const Plan plan;
  LoadStats stats;
  std::unique_ptr<Backend> backend;
  std::string state_fingerprint;
};

}  // namespace quern
