#include "templates/cpu/share.h"
#include "templates/spec/moe.h"

// The experts' rows times their weights, summed in slot order, then the residual. A unit is some
// columns of a token.

extern "C" const quern::spec::CombineSpec quern_spec;

namespace quern::cpu {
namespace {

constexpr u32 unit_columns = 512;

QUERN_INLINE void combine(const KernelArgs* args, u32 token, u32 begin, u32 end) {
  const auto& s = quern_spec;
  const float* rows = buffer<const float>(args, 0) + static_cast<u64>(token) * s.n_used * s.width;
  const float* weights = buffer<const float>(args, 1) + static_cast<u64>(token) * s.n_used;
  const u64 at = static_cast<u64>(token) * s.width;
  for (u32 i = begin; i < end; i += lanes) {
    const u32 n = min_of(lanes, end - i);
    f32x16 y = splat(weights[0]) * load_n(rows + i, n);
    for (u32 slot = 1; slot < s.n_used; ++slot) {
      y = fma(splat(weights[slot]), load_n(rows + static_cast<u64>(slot) * s.width + i, n), y);
    }
    if (s.residual != 0) y = load_n(buffer<const float>(args, 3) + at + i, n) + y;
    store_n(buffer<float>(args, 2) + at + i, y, n);
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const u32 slices = ceil_div(quern_spec.width, unit_columns);
  const u64 values = static_cast<u64>(args->n_tokens) * quern_spec.width * quern_spec.n_used;
  const Range share = fixed_share(args, args->n_tokens * slices, values);
  for (u32 unit = share.begin; unit < share.end; ++unit) {
    const u32 begin = unit % slices * unit_columns;
    combine(args, unit / slices, begin, min_of(begin + unit_columns, quern_spec.width));
  }
}
