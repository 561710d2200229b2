#include <variant>

#include "compiler/cpu/cpu_compiler.h"
#include "templates/cpu/kv_layout.h"
#include "templates/cpu/scratch.h"

namespace quern::cpu {

uint64_t scratch_bytes(const spec::AnySpec& spec, uint32_t max_tokens) {
  (void)max_tokens;
  return std::visit(
      [](const auto& s) -> uint64_t {
        if constexpr (requires { worker_scratch_bytes(s); }) {
          return worker_scratch_bytes(s);
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
