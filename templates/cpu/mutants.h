#pragma once

// Deliberately wrong variants, built by the tests alone (QUERN_MUTANT names one) to show that the
// tests would see the mistake.

namespace quern::cpu {

enum class Mutant {
  none = 0,
  gate_raw = 1,  ///< Output gate without its sigmoid.
  conv_state_after_silu = 2,
  window_off_by_one = 3,
  decay_after_update = 4,
  head_map_swapped = 5,  ///< tiled for grouped and the reverse.
  no_renormalisation = 6,
  qk_norm_per_head = 7,  ///< Where the spec says full width.
  causal_exclusive = 8,  ///< j < i for j <= i.
  rope_before_norm = 9,
  base_dropped = 10,  ///< Start position taken as 0.
  scale_off = 11,     ///< Attention scale times 1.0001.
};

#ifndef QUERN_MUTANT
#define QUERN_MUTANT 0
#endif

constexpr bool mutant(Mutant which) {
  return static_cast<int>(which) == QUERN_MUTANT;
}

}  // namespace quern::cpu
