#include "compiler/cuda/attention_choice.h"

#include <algorithm>

namespace quern::cuda {

bool choose_attention(spec::AttentionSpec& s, const TargetTraits& target) {
  const bool wide = std::max(s.head_dim, s.value_dim) > 128;
  s.block_keys = wide ? 64 : 128;
  s.segment_keys = wide ? 2048 : 1024;
  s.warps = 0;
  if (s.path == spec::AttentionPath::wave) {
    return s.value_dim <= 512 &&
           spec::attention_wave_shape(s, 1, 64).shared_bytes <= target.shared_bytes_block;
  }
  if (s.decode != 0) {
    return spec::attention_decode_shape(s, 1).shared_bytes <= target.shared_bytes_block;
  }
  while (spec::attention_prefill_shape(s, 1).shared_bytes > target.shared_bytes_block) {
    s.warps = spec::attention_prefill_warps(s) / 2;
    if (s.warps == 0) return false;
  }
  return true;
}

}  // namespace quern::cuda
