#pragma once

#include <cstdint>

#include "compiler/plan.h"

namespace quern {

/// Bytes of `rows` rows of `k` values of `type` in the cells of a target ("cpu" or "cuda"). On the
/// GPU the cells have the type's resident type (templates/spec/gemm_launch.h).
uint64_t packed_bytes(const Target& target, spec::QuantType type, uint64_t rows, uint64_t k);

/// Bytes of a layer's K (or V) cache for `capacity` positions (a multiple of 64).
uint64_t kv_cache_bytes(const Target& target, spec::KvType type, uint32_t n_head_kv, uint32_t dim,
                        uint32_t capacity);

/// Bytes that a weight takes in the target's memory: 0 where it is read in place from the file.
uint64_t weight_bytes(const Target& target, const WeightBinding& weight);

/// Bytes of an activation in the arena, for `chunk` tokens or `max_outputs` requested outputs.
/// Saturates at 2^64 - 1.
uint64_t activation_bytes(const ActivationBuffer& buffer, uint32_t chunk, uint32_t max_outputs);

/// Bytes of a row of an f16 operand `width` wide: whole slabs of 64 values.
constexpr uint64_t operand_row_bytes(uint64_t width) {
  return (width + 63) / 64 * 128;
}

/// Bytes of buffer 5 of attention on the GPU. Flash: what a prefill launch of `chunk` tokens parks,
/// or the partial results of a decode step at `context`, whichever is more. Wave: the scores of the
/// blocks of such a launch.
uint64_t attention_scratch_bytes(const spec::AttentionSpec& spec, uint32_t chunk, uint32_t context);

}  // namespace quern
