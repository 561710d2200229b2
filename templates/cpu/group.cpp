#include "templates/cpu/share.h"
#include "templates/spec/moe.h"

// Counting sort of the (token, slot) pairs by expert, in pair order inside each. One worker does
// it: a chunk has a few thousand pairs.

extern "C" const quern::spec::GroupSpec quern_spec;

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  if (args->worker != 0) return;
  const u32 n_expert = quern_spec.n_expert;
  const u32 n_pairs = args->n_tokens * quern_spec.n_used;
  const auto* ids = buffer<const i32>(args, 0);
  auto* offsets = buffer<i32>(args, 1);
  auto* pairs = buffer<i32>(args, 2);
  for (u32 e = 0; e <= n_expert; ++e) offsets[e] = 0;
  for (u32 i = 0; i < n_pairs; ++i) ++offsets[ids[i] + 1];
  for (u32 e = 0; e < n_expert; ++e) offsets[e + 1] += offsets[e];
  // While placing, an offset moves to its expert's end, which is the next one's start.
  for (u32 i = 0; i < n_pairs; ++i) pairs[offsets[ids[i]]++] = static_cast<i32>(i);
  for (u32 e = n_expert; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}
