#pragma once

#include <cstdint>
#include <vector>

#include "compiler/kernel.h"
#include "compiler/plan.h"

namespace quern::tools {

/// Indices of the plan's kernels, one for each key, in plan order; without those of libraries.
std::vector<uint32_t> distinct_kernels(const Plan& plan);

/// The full key of a plan's kernel, with the compiler of this build (and the NVRTC that is here,
/// for a GPU: Error (`failed`) where there is none).
KernelKey plan_kernel_key(const PlanKernel& kernel, const Target& target);

}  // namespace quern::tools
