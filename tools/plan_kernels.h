#pragma once

#include <cstdint>
#include <vector>

#include "compiler/kernel.h"
#include "compiler/plan.h"

namespace quern::tools {

/// Indices of the plan's kernels, one for each key, in plan order.
std::vector<uint32_t> distinct_kernels(const Plan& plan);

/// The full key of a plan's kernel, with the compiler of this build. Throws Error (`failed`) for a
/// target that this build has no back end for.
KernelKey plan_kernel_key(const PlanKernel& kernel, const Target& target);

}  // namespace quern::tools
