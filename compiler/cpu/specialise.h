#pragma once

#include <memory>
#include <string>

#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include "compiler/kernel.h"

namespace quern::cpu {

/// A template with its spec set, in a context of its own, and the machine it is compiled for.
struct SpecialisedModule {
  std::unique_ptr<llvm::LLVMContext> context;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::Module> module;
};

/// Reads the family's bitcode, sets its spec constant, makes everything but the entry point
/// internal, and gives every function the target's attributes. Nothing is optimised yet.
SpecialisedModule specialise(const spec::AnySpec& spec, const Target& target);

}  // namespace quern::cpu
