#include <llvm/ADT/SmallVector.h>
#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>

#include <chrono>
#include <string>

#include <fmt/format.h>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cpu/specialise.h"
#include "models/error.h"
#include "templates/cpu/abi.h"

namespace quern::cpu {
namespace {

/// Runs LLVM's O3 pipeline.
void optimise(SpecialisedModule& specialised) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager call_graph;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  tuning.SLPVectorization = true;
  tuning.LoopVectorization = true;
  llvm::PassBuilder builder(specialised.machine.get(), tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(call_graph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, call_graph, modules);

  llvm::ModulePassManager pipeline =
      builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3);
  pipeline.run(*specialised.module, modules);
}

std::string emit(SpecialisedModule& specialised, llvm::CodeGenFileType type) {
  llvm::SmallString<0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager codegen;
  if (specialised.machine->addPassesToEmitFile(codegen, stream, nullptr, type)) {
    throw Error(ErrorKind::failed, "LLVM", "it cannot emit code for this target");
  }
  codegen.run(*specialised.module);
  return std::string(bytes.str());
}

}  // namespace

CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target) {
  const auto start = std::chrono::steady_clock::now();
  CompiledKernel kernel;
  kernel.key = kernel_key(spec, target);
  kernel.symbol = kernel_symbol;
  SpecialisedModule specialised = specialise(spec, target);
  optimise(specialised);
  const std::string object = emit(specialised, llvm::CodeGenFileType::ObjectFile);
  kernel.code.resize(object.size());
  std::copy_n(reinterpret_cast<const std::byte*>(object.data()), object.size(),
              kernel.code.begin());
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  kernel.record = {{"compile_ms", fmt::format("{:.1f}", elapsed.count())},
                   {"code_bytes", fmt::format("{}", kernel.code.size())}};
  return kernel;
}

std::string kernel_ir(const spec::AnySpec& spec, const Target& target) {
  SpecialisedModule specialised = specialise(spec, target);
  optimise(specialised);
  std::string text;
  llvm::raw_string_ostream stream(text);
  specialised.module->print(stream, nullptr);
  return text;
}

std::string kernel_assembly(const spec::AnySpec& spec, const Target& target) {
  SpecialisedModule specialised = specialise(spec, target);
  optimise(specialised);
  return emit(specialised, llvm::CodeGenFileType::AssemblyFile);
}

}  // namespace quern::cpu
