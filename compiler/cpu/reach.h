#pragma once

#include <llvm/IR/Module.h>
#include <llvm/Support/Error.h>

namespace quern::cpu {

/// Reads from a lazily loaded module the functions that `entry` reaches once the constants of the
/// module are folded, inlining those that ask for it level by level, and drops all others. A
/// template carries every quant type and tile; this way one spec pays for its own alone, and the
/// optimiser never sees the rest.
llvm::Error reach(llvm::Module& module, llvm::Function& entry);

}  // namespace quern::cpu
