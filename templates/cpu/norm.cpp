#include "templates/spec/norm.h"

#include "templates/cpu/share.h"

// RMSNorm by groups. A unit is one group of one token; small launches stay on one worker, where a
// wake-up would cost more than the work.

extern "C" const quern::spec::NormSpec quern_spec;

namespace quern::cpu {
namespace {

struct Rows {
  const float *x, *weight, *residual, *z;
  float* y;
};

QUERN_INLINE void normalise(const Rows& rows, u32 token, u32 group) {
  const auto& s = quern_spec;
  const u64 at = static_cast<u64>(token) * s.width + group * s.group;
  const float* x = rows.x + at;
  const f32x16 scale = splat(rms_scale(x, s.group, s.eps));
  for (u32 i = 0; i < s.group; i += lanes) {
    const u32 n = min_of(lanes, s.group - i);
    f32x16 y = (load_n(x + i, n) * scale) * load_n(rows.weight + i, n);
    if (s.gate != 0) {
      const u64 z = static_cast<u64>(token) * s.z_row_width + s.z_offset + group * s.group + i;
      y = y * silu(load_n(rows.z + z, n));
    }
    if (s.residual != 0) y = load_n(rows.residual + at + i, n) + y;
    store_n(rows.y + at + i, y, n);
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const auto& s = quern_spec;
  const Rows rows{buffer<const float>(args, 0), buffer<const float>(args, 1),
                  buffer<const float>(args, 3), buffer<const float>(args, 4),
                  buffer<float>(args, 2)};
  const u32 groups = s.width / s.group;
  const u32 units = args->n_tokens * groups;
  const Range share = fixed_share(args, units, static_cast<u64>(args->n_tokens) * s.width);
  for (u32 unit = share.begin; unit < share.end; ++unit) {
    normalise(rows, unit / groups, unit % groups);
  }
}
