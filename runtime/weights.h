#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/cpu/cpu_loader.h"
#include "compiler/plan.h"
#include "models/gguf/file.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/engine.h"
#include "runtime/memory.h"

namespace quern {

/// A plan's weights where kernels read them: packed ones repacked into one block of memory, raw
/// ones and aligned f32 vectors in the file's mapping, other vectors as f32 copies.
class Weights {
 public:
  /// Every binding is checked against the file first: Error (`bad_model`) names the tensor that is
  /// missing or has another shape or type than the plan says. `does_not_fit` where memory lacks.
  Weights(const gguf::File& file, const Plan& plan, const std::vector<cpu::KernelFunction>& kernels,
          cpu::ThreadPool& pool, const Progress& progress);

  const void* at(size_t binding) const { return pointers_[binding]; }
  /// Bytes of memory beside the mapping.
  uint64_t bytes() const { return memory_.size(); }

 private:
  ZeroedMemory memory_;
  std::vector<const void*> pointers_;
};

}  // namespace quern
