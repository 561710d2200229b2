#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/kernel.h"

namespace quern::cpu {

/// Resolves "native", "cpu", "x86-64-v3" or "x86-64-v4" to a target. Throws Error (`usage`) on
/// another name. "native" names this machine's CPU and its features as LLVM reports them.
Target resolve_target(std::string_view name);
/// True where this machine can run code for the target; `missing` then lists features it lacks.
bool can_run(const Target& target, std::string* missing = nullptr);

/// The key of a kernel without compiling it (needs no LLVM at run time).
KernelKey kernel_key(const spec::AnySpec& spec, const Target& target);
/// Sets the family's spec constant in its bitcode, internalises, optimises for the target and emits
/// an object. Thread-safe. Throws Error (`failed`) with LLVM's message.
CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target);
/// The optimised LLVM IR of a kernel, for `quern cache show --ir`.
std::string kernel_ir(const spec::AnySpec& spec, const Target& target);
/// Its assembly.
std::string kernel_assembly(const spec::AnySpec& spec, const Target& target);

/// Scratch bytes that a worker of this kernel needs (pure arithmetic on the spec; 0 for most).
/// `max_tokens` is the largest n_tokens it will be launched with.
uint64_t scratch_bytes(const spec::AnySpec& spec, uint32_t max_tokens);

/// Bytes of `rows` rows of `k` values of `type` in the CPU's cells (rows padded to 16).
uint64_t packed_bytes(spec::QuantType type, uint64_t rows, uint64_t k);

/// Register tiles and K block that suit the target: a pure function with its reason.
struct GemmTile {
  uint32_t tile_tokens, tile_cells, k_block, gemv_max_tokens;
  std::string reason;
};
GemmTile choose_gemm_tile(const Target& target, uint32_t k, spec::Epilogue epilogue);

/// Bytes of a layer's K (or V) cache for `capacity` positions (a multiple of 64).
uint64_t kv_cache_bytes(spec::KvType type, uint32_t n_head_kv, uint32_t dim, uint32_t capacity);

}  // namespace quern::cpu
