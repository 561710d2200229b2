#pragma once

#include <vector>

#include "compiler/plan.h"
#include "runtime/engine.h"
#include "runtime/store/kernel_store.h"

namespace quern {

/// A plan's kernels, in the plan's order (without code for those that a library computes): looked
/// up in the store by digest, compiled in parallel on `threads` threads where it has none. Fills
/// the kernel fields of `stats`. Throws Error (`failed`) where an entry is not the one that the
/// plan lists.
std::vector<CompiledKernel> fetch_kernels(const Plan& plan, KernelStore& store,
                                          const KernelCompiler& compile, uint32_t threads,
                                          const Progress& progress, LoadStats& stats);

}  // namespace quern
