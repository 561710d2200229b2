#include "templates/cpu/share.h"
#include "templates/spec/norm.h"

// Rows by index.

extern "C" const quern::spec::GatherSpec quern_spec;

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const auto* x = buffer<const float>(args, 0);
  const auto* index = buffer<const int>(args, 1);
  auto* y = buffer<float>(args, 2);
  const u64 width = quern_spec.width;
  const Range share = fixed_share(args, args->n_tokens, args->n_tokens * width);
  for (u32 row = share.begin; row < share.end; ++row) {
    const float* from = x + static_cast<u64>(index[row]) * width;
    for (u64 i = 0; i < width; ++i) y[row * width + i] = from[i];
  }
}
