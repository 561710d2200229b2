#include "compiler/compile_kernel.h"

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"

namespace quern {

CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target, bool strict) {
  return is_cuda(target) ? cuda::compile_kernel(spec, target, strict)
                         : cpu::compile_kernel(spec, target);
}

}  // namespace quern
