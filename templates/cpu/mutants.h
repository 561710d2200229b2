#pragma once

// Deliberately wrong variants, built by the tests alone (QUERN_MUTANT names one) to show that the
// tests would see the mistake.

namespace quern::cpu {

enum class Mutant {
  none,
  gate_raw,  ///< Output gate without its sigmoid.
  conv_state_after_silu,
  window_off_by_one,
  decay_after_update,
  head_map_swapped,  ///< tiled for grouped and the reverse.
  no_renormalisation,
  qk_norm_per_head,  ///< Where the spec says full width.
  causal_exclusive,  ///< j < i for j <= i.
  rope_before_norm,
  base_dropped,  ///< Start position taken as 0.
  scale_off,     ///< Attention scale times 1.0001.
};

#ifndef QUERN_MUTANT
#define QUERN_MUTANT none
#endif

constexpr bool mutant(Mutant which) {
  return which == Mutant::QUERN_MUTANT;
}

}  // namespace quern::cpu
