#include "tools/plan_kernels.h"

#include <set>
#include <string>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"

namespace quern::tools {

std::vector<uint32_t> distinct_kernels(const Plan& plan) {
  std::set<std::string> seen;
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < plan.kernels.size(); ++i) {
    if (seen.insert(plan.kernels[i].key_digest).second) indices.push_back(i);
  }
  return indices;
}

KernelKey plan_kernel_key(const PlanKernel& kernel, const Target& target) {
  if (target.kind == "cuda") return cuda::kernel_key(kernel.spec, target);
  return cpu::kernel_key(kernel.spec, target);
}

}  // namespace quern::tools
