#include "templates/cpu/mutants.h"
#include "templates/cpu/share.h"
#include "templates/spec/norm.h"

// y = a + b, or a + b * sigmoid(g . x) token by token (the shared expert).

extern "C" const quern::spec::AddSpec quern_spec;

namespace quern::cpu {
namespace {

QUERN_INLINE void add_row(const float* a, const float* b, float* y, f32x16 gate) {
  const u32 width = quern_spec.width;
  for (u32 i = 0; i < width; i += lanes) {
    const u32 n = min_of(lanes, width - i);
    const f32x16 addend = load_n(b + i, n);
    const f32x16 base = load_n(a + i, n);
    store_n(y + i, quern_spec.gate_width != 0 ? fma(addend, gate, base) : base + addend, n);
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const auto& s = quern_spec;
  const auto* a = buffer<const float>(args, 0);
  const auto* b = buffer<const float>(args, 1);
  auto* y = buffer<float>(args, 2);
  const u64 values = static_cast<u64>(args->n_tokens) * s.width;
  const Range share = fixed_share(args, args->n_tokens, values);
  for (u32 token = share.begin; token < share.end; ++token) {
    float gate = 1;
    if (s.gate_width != 0) {
      const float* x = buffer<const float>(args, 3) + static_cast<u64>(token) * s.gate_width;
      const float logit = dot(buffer<const float>(args, 4), x, s.gate_width);
      gate = mutant(Mutant::gate_raw) ? logit : sigmoid(logit);
    }
    const u64 at = static_cast<u64>(token) * s.width;
    add_row(a + at, b + at, y + at, splat(gate));
  }
}
