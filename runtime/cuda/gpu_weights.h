#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/plan.h"
#include "models/gguf/file.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/cuda/device.h"
#include "runtime/engine.h"

namespace quern::cuda {

/// A plan's weights in device memory: packed ones in their cells, tables of embeddings as the file
/// has them, vectors as f32. They are streamed from the file's mapping through pinned memory, which
/// all of the pool's threads fill while the device copies and repacks what came before.
class GpuWeights {
 public:
  /// Every binding is checked against the file first: Error (`bad_model`) names the tensor that is
  /// missing or has another shape or type than the plan says. `does_not_fit` where memory lacks.
  /// `kernels`: the plan's, in its order.
  GpuWeights(const gguf::File& file, const Plan& plan, const std::vector<LoadedKernel>& kernels,
             const std::shared_ptr<Device>& device, cpu::ThreadPool& pool,
             const Progress& progress);

  void* at(size_t binding) const { return memory_.pointer(offsets_[binding]); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<uint64_t> offsets_;
};

}  // namespace quern::cuda
