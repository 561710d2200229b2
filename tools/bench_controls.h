#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "compiler/plan.h"
#include "runtime/cuda/device.h"

namespace quern::tools {

/// A projection: `rows` outputs of `k` inputs.
struct GemmSize {
  uint32_t rows = 0, k = 0;
};

/// cuBLASLt on one projection: f16 inputs, f32 sums and outputs.
struct GemmControl {
  GemmSize size;
  uint32_t tokens = 0;
  double tflops = 0;
};

/// What the same device does in the same minute with work that is not Quern's: clocks and other
/// tenants move both. What could not be measured is absent.
struct Controls {
  std::optional<GemmControl> gemm;
  std::optional<double> copy_gb_per_s;  ///< Device to device, bytes read and written.
};

/// The largest projection of the plan's layers, gate and up counted as one. Nothing where no layer
/// has a dense one.
std::optional<GemmSize> largest_gemm(const Plan& plan);

/// Measures the controls of a row that gives `tokens` of a prompt at a time (0: it generates, and
/// the copy bandwidth alone tells something) on the plan's device. Empty for a CPU plan. A control
/// that fails (no cuBLASLt, no memory left) is left out with a warning in the log.
Controls measure_controls(const Plan& plan, uint32_t tokens);

/// Its two halves, on a device. Throw Error.
GemmControl measure_gemm(const std::shared_ptr<cuda::Device>& device, GemmSize size,
                         uint32_t tokens);
double measure_copy(const std::shared_ptr<cuda::Device>& device);

}  // namespace quern::tools
