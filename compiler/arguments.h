#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/plan.h"

namespace quern {

/// What a kernel does with a buffer.
enum class Access { read, write, update };

/// What a kernel expects at one place of its buffer list, as its family's spec documents it.
struct Argument {
  std::string_view name;
  BufferKind kind = BufferKind::none;  ///< `none`: the family's null argument.
  Access access = Access::read;
  bool optional = false;  ///< May be null too.
  ActivationForm activation = ActivationForm::rows;
  bool may_be_kept = false;  ///< ... or a `kept` one: `fixed_bytes` alone.
  /// Activations, token ids, row numbers, logits: bytes for each row of the launch, and beside the
  /// rows.
  uint64_t bytes_per_row = 0, fixed_bytes = 0;
  /// Activations: the rows are the chunk's tokens although the launch's rows may be outputs
  /// (gather).
  bool token_rows = false;
  /// Weights. Vectors: `rows` values. Rope tables: `rows` rotated dims.
  WeightForm form = WeightForm::raw;
  spec::QuantType type = spec::QuantType::f32;
  uint64_t k = 0, rows = 0, experts = 1;
  bool glu = false;         ///< Gate and up rows in one packed weight ...
  bool glu_or_not = false;  ///< ... or any.
  /// State.
  StateKind state = StateKind::key_cache;
};

/// The arguments of a kernel of the plan, in its buffer order: of its target, cache and chunk.
/// Sizes saturate at 2^64 - 1 where a spec is absurd. A cache's bytes are `fixed_bytes`. On the GPU
/// a packed weight's type is its resident type, and the rows of a gated unit count both halves.
std::vector<Argument> kernel_arguments(const spec::AnySpec& spec, const Plan& plan);

/// Throws Error (`failed`) naming the field under `where` if no kernel of the family can be made
/// from the spec: counts out of range, rows that are not whole blocks, parts outside their row.
void check_spec(const spec::AnySpec& spec, std::string_view where);

/// a * b and a + b that stay at 2^64 - 1 instead of wrapping.
uint64_t saturating_mul(uint64_t a, uint64_t b);
uint64_t saturating_add(uint64_t a, uint64_t b);

}  // namespace quern
