#pragma once

#include "templates/spec/types.h"

namespace quern::cpu {

using spec::u32;

/// Arguments of every CPU kernel. All workers of the pool call the kernel with the same struct but
/// for `worker` and `scratch`; they share the work through `next_tile` (an atomic counter that the
/// executor sets to zero before the launch) or a fixed split. A kernel never writes the same byte
/// from two workers.
struct KernelArgs {
  void* const* buffers = nullptr;  ///< In the order that the family's spec documents.
  u32 n_tokens = 0;                ///< Rows of this launch.
  u32 start_position = 0;          ///< Absolute position of row 0.
  u32 kv_capacity = 0;             ///< Positions that the cache has room for (a multiple of 64).
  u32 worker = 0;
  u32 n_workers = 1;
  u32 params[3] = {};  ///< Family-specific run-time numbers (documented in the spec).
  u32* next_tile = nullptr;
  /// This worker's scratch, 64-byte aligned. The workers' slices lie side by side in one block:
  /// worker w's begins w * scratch_bytes after worker 0's (attention over many segments folds in
  /// worker 0's).
  void* scratch = nullptr;
  unsigned long scratch_bytes = 0;  ///< Of one slice, a multiple of 64.
};

/// Every kernel object exports this symbol.
using KernelFunction = void (*)(const KernelArgs*);
inline constexpr const char* kernel_symbol = "quern_kernel";

}  // namespace quern::cpu
