#include "compiler/cpu/cpu_loader.h"

#include <cstring>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Support/MemoryBuffer.h>

#include "models/error.h"

namespace quern::cpu {
namespace {

[[noreturn]] void fail(llvm::Error error) {
  throw Error(ErrorKind::failed, "CPU kernel", llvm::toString(std::move(error)),
              "delete the kernel store's entry (quern cache verify) and run again");
}

template <class T>
T check(llvm::Expected<T> value) {
  if (!value) fail(value.takeError());
  return std::move(*value);
}

void check(llvm::Error error) {
  if (error) fail(std::move(error));
}

}  // namespace

struct KernelLoader::Impl {
  llvm::orc::ExecutionSession session;
  llvm::orc::ObjectLinkingLayer layer;
  llvm::orc::JITDylib* base = nullptr;
  std::mutex mutex;
  unsigned count = 0;

  Impl()
      : session(check(llvm::orc::SelfExecutorProcessControl::Create())),
        layer(session, check(llvm::jitlink::InProcessMemoryManager::Create())) {
    // LLVM may turn copying loops into these two; kernels call nothing else.
    base = &session.createBareJITDylib("base");
    llvm::orc::SymbolMap symbols;
    for (const auto& [name, address] :
         {std::pair{"memcpy", reinterpret_cast<void*>(&std::memcpy)},
          std::pair{"memset", reinterpret_cast<void*>(&std::memset)}}) {
      symbols[session.intern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address),
                                       llvm::JITSymbolFlags::Exported};
    }
    check(base->define(llvm::orc::absoluteSymbols(std::move(symbols))));
  }

  ~Impl() {
    if (llvm::Error error = session.endSession()) llvm::consumeError(std::move(error));
  }
};

KernelLoader::KernelLoader() : impl_(std::make_unique<Impl>()) {}
KernelLoader::~KernelLoader() = default;

KernelFunction KernelLoader::load(const CompiledKernel& kernel) {
  const std::lock_guard lock(impl_->mutex);
  llvm::orc::JITDylib& library =
      impl_->session.createBareJITDylib(fmt::format("kernel {}", impl_->count++));
  library.addToLinkOrder(*impl_->base);
  check(impl_->layer.add(
      library,
      llvm::MemoryBuffer::getMemBufferCopy(
          llvm::StringRef(reinterpret_cast<const char*>(kernel.code.data()), kernel.code.size()),
          library.getName())));
  const auto symbol = check(impl_->session.lookup({&library}, kernel.symbol));
  return symbol.getAddress().toPtr<KernelFunction>();
}

}  // namespace quern::cpu
