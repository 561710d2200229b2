#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "templates/spec/any_spec.h"

namespace quern {

/// What a kernel is compiled for. CPU: kind "cpu", name "native" resolved to the CPU's own name
/// with its feature list, or "x86-64-v3" / "x86-64-v4". GPU: kind "cuda", name "sm_90a".
struct Target {
  std::string kind;
  std::string name;      ///< What the user asked for, resolved: "znver5", "x86-64-v3", "sm_90a".
  std::string features;  ///< Canonical, sorted "+avx2,+avx512f…"; empty on GPUs.

  bool operator==(const Target&) const = default;
};

/// Everything that a kernel's bits depend on, as named text fields in a fixed order: schema,
/// family, spec, source digest, header digest, options, target, compiler. No paths, times or
/// environment.
struct KernelKey {
  std::vector<std::pair<std::string, std::string>> fields;

  /// SHA-256 (hex) over the length-prefixed fields.
  std::string digest() const;
};

/// A compiled kernel: machine code (ELF object or cubin) and its record.
struct CompiledKernel {
  KernelKey key;
  std::string symbol;  ///< Entry point.
  std::vector<std::byte> code;
  uint64_t scratch_bytes = 0;  ///< CPU: scratch a worker needs.
  /// Facts for the inspector: "compile_ms", "code_bytes", "registers", "spills", "log" …
  std::vector<std::pair<std::string, std::string>> record;
};

/// Canonical one-line JSON of a spec: {"family":"gemm",...} with every field in declaration order.
std::string spec_to_text(const spec::AnySpec& spec);
/// The reverse; throws Error (`failed`) naming the field where the text is no spec.
spec::AnySpec spec_from_text(std::string_view text);
std::string_view spec_family(const spec::AnySpec& spec);
/// Whether a library computes it (cuBLASLt): then there is no source, key or compiled kernel.
bool is_library(const spec::AnySpec& spec);
/// Field names with their values as text ("segments[0].type" = "q4_k"), for diffs and keys.
std::vector<std::pair<std::string, std::string>> spec_fields(const spec::AnySpec& spec);

}  // namespace quern
