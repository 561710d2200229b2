#include "templates/spec/embed.h"

#include "templates/cpu/abi.h"
#include "templates/cpu/work.h"

extern "C" const quern::spec::EmbedSpec quern_spec;

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const int* ids = static_cast<const int*>(args->buffers[0]);
  const float* table = static_cast<const float*>(args->buffers[1]);
  float* y = static_cast<float*>(args->buffers[2]);
  const u64 width = quern_spec.width;
  for (Range r = take(args, args->n_tokens, 1); !r.empty(); r = take(args, args->n_tokens, 1)) {
    for (u64 i = 0; i < width; ++i) {
      y[r.begin * width + i] = quern_spec.scale * table[static_cast<u64>(ids[r.begin]) * width + i];
    }
  }
}
