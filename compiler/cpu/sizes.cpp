#include <variant>

#include "compiler/cpu/cpu_compiler.h"
#include "templates/cpu/cell_format.h"
#include "templates/cpu/kv_layout.h"
#include "templates/cpu/scratch.h"

namespace quern::cpu {
namespace {

/// A tile's decoded weights for one block of k, then its partial sums of every token (gemm_tile.h).
template <class Spec>
uint64_t tile_scratch_bytes(const Spec& spec, uint64_t max_tokens) {
  uint64_t values = (spec.k_block + max_tokens) * spec.tile_cells * cell_rows;
  if constexpr (requires { spec.n_expert; }) values += list_values(spec.n_expert);
  return values * sizeof(float);
}

}  // namespace

uint64_t packed_bytes(spec::QuantType type, uint64_t rows, uint64_t k) {
  return (rows + cell_rows - 1) / cell_rows * cell_format(type).cell_bytes(k);
}

uint64_t scratch_bytes(const spec::AnySpec& spec, uint32_t max_tokens) {
  return std::visit(
      [max_tokens](const auto& s) -> uint64_t {
        if constexpr (requires { worker_scratch_bytes(s); }) {
          return worker_scratch_bytes(s);
        } else if constexpr (requires { s.tile_cells; }) {
          return tile_scratch_bytes(s, max_tokens);
        } else {
          return 0;
        }
      },
      spec);
}

uint64_t kv_cache_bytes(spec::KvType type, uint32_t n_head_kv, uint32_t dim, uint32_t capacity) {
  return kv_bytes(type, n_head_kv, dim, capacity);
}

}  // namespace quern::cpu
