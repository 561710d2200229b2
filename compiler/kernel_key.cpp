// Apart from compile_kernel.cpp: what only asks for keys is not linked with LLVM.

#include <fmt/format.h>

#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"
#include "compiler/cuda/nvrtc.h"
#include "models/error.h"

namespace quern {

bool is_cuda(const Target& target) {
  if (target.kind == "cpu") return false;
  if (target.kind == "cuda") return true;
  throw Error(ErrorKind::usage, fmt::format("target {}", target.name),
              fmt::format("no back end compiles for the kind \"{}\"", target.kind),
              "use --target cpu, or a GPU's such as sm_90a");
}

KernelKey kernel_key(const spec::AnySpec& spec, const Target& target) {
  return is_cuda(target) ? cuda::kernel_key(spec, target) : cpu::kernel_key(spec, target);
}

bool can_compile(const Target& target) {
  return !is_cuda(target) || cuda::Nvrtc::problem().empty();
}

}  // namespace quern
