#include "compiler/cpu/reach.h"

#include <vector>

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Instructions.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/SCCP.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Cloning.h>

namespace quern::cpu {
namespace {

/// Folds constants and removes the branches that they rule out, function by function.
class Folder {
 public:
  Folder() {
    builder_.registerModuleAnalyses(modules_);
    builder_.registerCGSCCAnalyses(call_graph_);
    builder_.registerFunctionAnalyses(functions_);
    builder_.registerLoopAnalyses(loops_);
    builder_.crossRegisterProxies(loops_, functions_, call_graph_, modules_);
    passes_.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
    passes_.addPass(llvm::EarlyCSEPass());
    passes_.addPass(llvm::SCCPPass());
    passes_.addPass(llvm::SimplifyCFGPass());
  }

  void run(llvm::Function& function) {
    passes_.run(function, functions_);
    functions_.invalidate(function, llvm::PreservedAnalyses::none());
  }

 private:
  llvm::LoopAnalysisManager loops_;
  llvm::FunctionAnalysisManager functions_;
  llvm::CGSCCAnalysisManager call_graph_;
  llvm::ModuleAnalysisManager modules_;
  llvm::PassBuilder builder_;
  llvm::FunctionPassManager passes_;
};

std::vector<llvm::CallBase*> calls_to_inline(llvm::Function& function) {
  std::vector<llvm::CallBase*> calls;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
    if (call == nullptr) continue;
    const llvm::Function* callee = call->getCalledFunction();
    if (callee == nullptr || callee == &function || callee->isDeclaration()) continue;
    if (callee->hasFnAttribute(llvm::Attribute::AlwaysInline)) calls.push_back(call);
  }
  return calls;
}

/// Folds a function, then its inlined callees in it, level by level: a call in a branch that the
/// spec rules out is gone before its callee is even read.
llvm::Error complete(llvm::Function& function, Folder& folder) {
  if (llvm::Error error = function.materialize()) return error;
  for (;;) {
    folder.run(function);
    const std::vector<llvm::CallBase*> calls = calls_to_inline(function);
    if (calls.empty()) return llvm::Error::success();
    for (llvm::CallBase* call : calls) {
      if (llvm::Error error = call->getCalledFunction()->materialize()) return error;
      llvm::InlineFunctionInfo info;
      const llvm::InlineResult result = llvm::InlineFunction(*call, info);
      if (!result.isSuccess()) {
        return llvm::createStringError("a function cannot be inlined: %s",
                                       result.getFailureReason());
      }
    }
  }
}

}  // namespace

llvm::Error reach(llvm::Module& module, llvm::Function& entry) {
  Folder folder;
  llvm::SetVector<llvm::Function*> reached;
  reached.insert(&entry);
  for (size_t i = 0; i < reached.size(); ++i) {
    llvm::Function& function = *reached[i];
    if (llvm::Error error = complete(function, folder)) return error;
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      for (llvm::Value* operand : instruction.operands()) {
        auto* used = llvm::dyn_cast<llvm::Function>(operand);
        if (used != nullptr && !used->isDeclaration()) reached.insert(used);
      }
    }
  }
  std::vector<llvm::Function*> unused;
  for (llvm::Function& function : module) {
    if (!function.isDeclaration() && !reached.contains(&function)) unused.push_back(&function);
  }
  for (llvm::Function* function : unused) function->deleteBody();
  for (llvm::Function* function : unused) {
    function->replaceAllUsesWith(llvm::PoisonValue::get(function->getType()));
    function->eraseFromParent();
  }
  return llvm::Error::success();
}

}  // namespace quern::cpu
