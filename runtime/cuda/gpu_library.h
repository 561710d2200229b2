#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "compiler/plan.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/cuda/device.h"

namespace quern::cuda {

/// Throws Error (`failed`) with the remedy where a step of the plan is cuBLASLt's and the library
/// cannot be loaded.
void check_library(const Plan& plan);

/// The products of a plan that cuBLASLt computes: their algorithms are found and their workspace is
/// taken when the plan is loaded.
class GpuLibrary {
 public:
  GpuLibrary(const std::shared_ptr<Device>& device, const Plan& plan);

  /// Launches a `matmul` step over `rows` rows. Rows beyond them, up to the next size that there is
  /// an algorithm for, are computed too, from whatever lies there; the buffers have room for that.
  void run(const StreamQueue& stream, const Step& step, uint32_t rows,
           const KernelArgs& args) const;

 private:
  const spec::MatmulSpec& spec_of(const Step& step) const;
  /// Rows that a launch of `rows` rows computes.
  uint32_t size_of(const Step& step, uint32_t rows) const;

  const Plan& plan_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, CublasGemm> gemms_;  ///< By m, n, k.
};

}  // namespace quern::cuda
