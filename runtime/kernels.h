#pragma once

#include <string>
#include <vector>

#include "compiler/cpu/cpu_loader.h"
#include "compiler/plan.h"
#include "runtime/engine.h"
#include "runtime/store/kernel_store.h"

namespace quern {

/// The entry points of a plan's kernels, in the plan's order: looked up in the store by digest,
/// compiled in parallel where it has none, linked with `loader`. Fills the kernel fields of
/// `stats`. Throws Error
/// (`failed`) where an entry is not the one that the plan lists.
std::vector<cpu::KernelFunction> load_kernels(const Plan& plan, KernelStore& store,
                                              const KernelCompiler& compile, uint32_t threads,
                                              const Progress& progress, cpu::KernelLoader& loader,
                                              LoadStats& stats);

}  // namespace quern
