#include "tools/plan_kernels.h"

#include <set>
#include <string>

#include "compiler/compile_kernel.h"

namespace quern::tools {

std::vector<uint32_t> distinct_kernels(const Plan& plan) {
  std::set<std::string> seen;
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < plan.kernels.size(); ++i) {
    // Without NVRTC a GPU plan's kernels have no keys: their specs tell them apart.
    const PlanKernel& kernel = plan.kernels[i];
    if (is_library(kernel.spec)) continue;
    if (seen.insert(kernel.key_digest.empty() ? spec_to_text(kernel.spec) : kernel.key_digest)
            .second) {
      indices.push_back(i);
    }
  }
  return indices;
}

KernelKey plan_kernel_key(const PlanKernel& kernel, const Target& target) {
  return kernel_key(kernel.spec, target);
}

}  // namespace quern::tools
