#include "compiler/device_sizes.h"

#include <algorithm>

#include "compiler/arguments.h"
#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "compiler/spec_names.h"
#include "templates/spec/attention_launch.h"
#include "templates/spec/gemm_launch.h"
#include "templates/spec/kv_launch.h"

namespace quern {

namespace {

uint64_t product(uint64_t a, uint64_t b, uint64_t c) {
  return saturating_mul(saturating_mul(a, b), c);
}

}  // namespace

uint32_t operand_rows(uint32_t chunk) {
  return (chunk + 63) / 64 * 64;
}

uint64_t packed_bytes(const Target& target, spec::QuantType type, uint64_t rows, uint64_t k) {
  if (!is_cuda(target)) return cpu::packed_bytes(type, rows, k);
  const spec::QuantType resident = spec::gpu_resident_type(type);
  const uint64_t cell_k = spec::gpu_cell_k(resident);
  return product((rows + 127) / 128 * 8, (k + cell_k - 1) / cell_k, spec::gpu_cell_bytes(resident));
}

uint64_t kv_cache_bytes(const Target& target, spec::KvType type, uint32_t n_head_kv, uint32_t dim,
                        uint32_t capacity) {
  if (!is_cuda(target)) return cpu::kv_cache_bytes(type, n_head_kv, dim, capacity);
  return product(n_head_kv, capacity, spec::kv_row_bytes(type, dim));
}

uint64_t weight_bytes(const Target& target, const WeightBinding& weight) {
  const WeightSlice& slice = weight.slice;
  const bool gpu = is_cuda(target);
  switch (weight.form) {
    case WeightForm::packed: {
      const uint64_t rows = saturating_mul(slice.rows, weight.glu_up ? 2 : 1);
      return saturating_mul(slice.experts,
                            packed_bytes(target, to_spec(slice.type), rows, slice.k));
    }
    case WeightForm::raw:
      return gpu ? product(slice.experts, slice.rows, row_bytes(slice.type, slice.k)) : 0;
    case WeightForm::vector:
      break;
  }
  return gpu ? saturating_mul(slice.rows, sizeof(float)) : 0;
}

uint64_t activation_bytes(const ActivationBuffer& buffer, uint32_t chunk, uint32_t max_outputs) {
  const uint32_t rows = buffer.form == ActivationForm::operand ? operand_rows(chunk)
                        : buffer.selected                      ? max_outputs
                                                               : chunk;
  return saturating_add(saturating_mul(buffer.bytes_per_row, rows), buffer.fixed_bytes);
}

uint64_t attention_scratch_bytes(const spec::AttentionSpec& spec, uint32_t chunk,
                                 uint32_t context) {
  if (spec.path == spec::AttentionPath::wave) {
    const uint32_t capacity = kv_capacity(context);
    const uint32_t blocks = spec::attention_wave_shape(spec, chunk, capacity).grid_x;
    return product(blocks, spec::attention_wave_queries, capacity * sizeof(float));
  }
  const uint64_t parked = product(chunk, spec.n_head, spec.value_dim);
  const uint64_t segments = (uint64_t{context} + spec.segment_keys - 1) / spec.segment_keys;
  const uint64_t partial = product(spec.n_head, segments, uint64_t{spec.value_dim} + 2);
  return saturating_mul(std::max(parked, partial), sizeof(float));
}

}  // namespace quern
