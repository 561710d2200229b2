#include "compiler/cpu/specialise.h"

#include <cstring>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/Error.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetOptions.h>

#include "compiler/cpu/bitcode.h"
#include "compiler/cpu/reach.h"
#include "models/error.h"
#include "templates/cpu/abi.h"

namespace quern::cpu {
namespace {

constexpr const char* kSpecSymbol = "quern_spec";
constexpr const char* kRegistersSymbol = "quern_vector_registers";

void initialise_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

[[noreturn]] void fail(std::string_view family, std::string_view reason) {
  throw Error(ErrorKind::failed, fmt::format("CPU kernel '{}'", family), reason,
              "this is a fault of Quern; please report it");
}

std::unique_ptr<llvm::TargetMachine> make_machine(std::string_view family, const Target& target,
                                                  const std::string& triple) {
  std::string message;
  const llvm::Target* llvm_target = llvm::TargetRegistry::lookupTarget(triple, message);
  if (llvm_target == nullptr) fail(family, message);
  const llvm::TargetOptions options;
  // The features are all named by the target; its own name serves the scheduling model (tune-cpu).
  llvm::TargetMachine* machine = llvm_target->createTargetMachine(
      triple, "x86-64", target.features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
      llvm::CodeGenOptLevel::Aggressive, true);
  if (machine == nullptr) fail(family, "LLVM has no machine for the target");
  return std::unique_ptr<llvm::TargetMachine>(machine);
}

/// The spec's fields in order; it is an aggregate of 32-bit fields without padding.
std::vector<uint32_t> spec_words(const spec::AnySpec& spec) {
  return std::visit(
      [](const auto& s) {
        using Spec = std::decay_t<decltype(s)>;
        static_assert(std::is_trivially_copyable_v<Spec> && sizeof(Spec) % 4 == 0);
        std::vector<uint32_t> words(sizeof(Spec) / 4);
        std::memcpy(words.data(), &s, sizeof(Spec));
        return words;
      },
      spec);
}

/// A constant of `type` from the words at `next`, which moves on past them.
llvm::Constant* constant_from_words(llvm::Type* type, const uint32_t*& next) {
  llvm::LLVMContext& context = type->getContext();
  if (auto* aggregate = llvm::dyn_cast<llvm::StructType>(type)) {
    std::vector<llvm::Constant*> fields;
    for (llvm::Type* field : aggregate->elements())
      fields.push_back(constant_from_words(field, next));
    return llvm::ConstantStruct::get(aggregate, fields);
  }
  if (auto* array = llvm::dyn_cast<llvm::ArrayType>(type)) {
    std::vector<llvm::Constant*> items;
    for (uint64_t i = 0; i < array->getNumElements(); ++i) {
      items.push_back(constant_from_words(array->getElementType(), next));
    }
    return llvm::ConstantArray::get(array, items);
  }
  const llvm::APInt word(32, *next++);
  if (type->isFloatTy()) {
    return llvm::ConstantFP::get(context, llvm::APFloat(llvm::APFloat::IEEEsingle(), word));
  }
  return llvm::ConstantInt::get(context, word);
}

/// Gives the declared spec its value.
void set_spec(llvm::Module& module, std::string_view family, const spec::AnySpec& spec) {
  llvm::GlobalVariable* declared = module.getGlobalVariable(kSpecSymbol, true);
  if (declared == nullptr) return;  // A template that reads nothing of its spec.
  const std::vector<uint32_t> words = spec_words(spec);
  if (module.getDataLayout().getTypeAllocSize(declared->getValueType()) != 4 * words.size()) {
    fail(family, "the template and the compiler disagree about its spec");
  }
  const uint32_t* next = words.data();
  declared->setInitializer(constant_from_words(declared->getValueType(), next));
  declared->setConstant(true);
  declared->setLinkage(llvm::GlobalValue::InternalLinkage);
}

bool has_wide_vectors(const Target& target) {
  return target.features.find("+avx512f") != std::string::npos;
}

/// Tells a template that chooses its register tiles by it how many vector registers there are.
void set_vector_registers(llvm::Module& module, const Target& target) {
  llvm::GlobalVariable* declared = module.getGlobalVariable(kRegistersSymbol, true);
  if (declared == nullptr) return;
  const uint64_t registers = has_wide_vectors(target) ? 32 : 16;
  declared->setInitializer(llvm::ConstantInt::get(declared->getValueType(), registers));
  declared->setConstant(true);
  declared->setLinkage(llvm::GlobalValue::InternalLinkage);
}

void set_attributes(llvm::Function& function, const Target& target) {
  const bool wide = has_wide_vectors(target);
  for (const char* old : {"target-cpu", "target-features", "tune-cpu", "min-legal-vector-width",
                          "prefer-vector-width"}) {
    function.removeFnAttr(old);
  }
  function.addFnAttr("target-cpu", "x86-64");
  function.addFnAttr("target-features", target.features);
  const bool level = target.name.starts_with("x86-64");
  function.addFnAttr("tune-cpu", level ? "generic" : target.name);
  function.addFnAttr("prefer-vector-width", wide ? "512" : "256");
  function.addFnAttr("min-legal-vector-width", wide ? "512" : "256");
}

}  // namespace

SpecialisedModule specialise(const spec::AnySpec& spec, const Target& target) {
  initialise_llvm();
  const BitcodeRow& row = find_bitcode(spec_family(spec));
  SpecialisedModule result;
  result.context = std::make_unique<llvm::LLVMContext>();
  const llvm::MemoryBufferRef buffer(
      llvm::StringRef(reinterpret_cast<const char*>(row.data), row.size), row.family);
  auto parsed = llvm::getLazyBitcodeModule(buffer, *result.context);
  if (!parsed) fail(row.family, llvm::toString(parsed.takeError()));
  result.module = std::move(*parsed);
  llvm::Module& module = *result.module;
  result.machine = make_machine(row.family, target, module.getTargetTriple());
  module.setDataLayout(result.machine->createDataLayout());

  set_spec(module, row.family, spec);
  set_vector_registers(module, target);
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    set_attributes(function, target);
    function.setComdat(nullptr);
    if (function.getName() == kernel_symbol) {
      function.setVisibility(llvm::GlobalValue::DefaultVisibility);
    } else {
      function.setLinkage(llvm::GlobalValue::InternalLinkage);
    }
  }
  for (llvm::GlobalVariable& global : module.globals()) {
    if (global.isDeclaration()) continue;
    global.setComdat(nullptr);
    global.setLinkage(llvm::GlobalValue::InternalLinkage);
  }
  llvm::Function* entry = module.getFunction(kernel_symbol);
  if (entry == nullptr) fail(row.family, "its template has no entry point");
  if (llvm::Error error = reach(module, *entry)) fail(row.family, llvm::toString(std::move(error)));
  return result;
}

}  // namespace quern::cpu
