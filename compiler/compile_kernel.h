#pragma once

#include "compiler/kernel.h"

namespace quern {

// Kernels of every target: these choose the back end by the target's kind.

/// Whether the target is a GPU. Throws Error (`usage`) for a kind that is neither "cpu" nor "cuda".
bool is_cuda(const Target& target);

/// The kernel's key with the compiler of this machine. GPU targets need NVRTC for its version:
/// throws Error (`failed`) with the remedy where there is none.
KernelKey kernel_key(const spec::AnySpec& spec, const Target& target);

/// Compiles a kernel. Thread-safe. With `strict`, GPU kernels that spill registers or whose wgmma
/// instructions were serialised are an Error (`failed`) instead of a line in the record.
CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target, bool strict = false);

/// Whether kernels of the target can be compiled, and so named by their keys, on this machine.
bool can_compile(const Target& target);

}  // namespace quern
