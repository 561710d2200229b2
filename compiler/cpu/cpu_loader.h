#pragma once

#include <memory>

#include "compiler/kernel.h"
#include "templates/cpu/abi.h"

namespace quern::cpu {

/// Links compiled kernels into this process with ORC. Starts neither LLVM's optimiser nor its code
/// generators: loading a stored object costs about a millisecond. Functions stay valid as long as
/// the loader that gave them. Thread-safe.
class KernelLoader {
 public:
  KernelLoader();
  ~KernelLoader();
  KernelLoader(const KernelLoader&) = delete;
  KernelLoader& operator=(const KernelLoader&) = delete;

  /// The entry point of `kernel`. Throws Error (`failed`) where the code is not an object for this
  /// machine or misses its symbol.
  KernelFunction load(const CompiledKernel& kernel);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern::cpu
