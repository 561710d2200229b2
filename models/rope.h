#pragma once

#include <span>

#include "models/graph.h"
#include "models/keys.h"

namespace quern {

/// How rotary frequencies are stretched beyond the context a model was trained with (FACTS B 3.2).
/// Factor 1 with no `extrapolation` is plain RoPE.
struct RopeScaling {
  double factor = 1;         ///< Positions are divided by it.
  double extrapolation = 0;  ///< YaRN's mix of unscaled frequencies; 0: linear scaling.
  double attention_factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double original_context = 0;
};

/// Reads `rope.scaling.*`. Types: none, linear, yarn; others are refused by name.
RopeScaling read_rope_scaling(const Keys& keys, const Size& context_length);

/// The frequencies of one rotary embedding, in double: pair i of n_rot / 2 turns by
/// base^(-2i / n_rot) / divisors[i] a position, stretched by `scaling`. `divisors` (`rope_freqs`)
/// is empty or holds n_rot / 2 values.
Rope make_rope(RopeKind kind, uint32_t n_rot, double base, const RopeScaling& scaling,
               std::span<const float> divisors = {});

/// Checks `rope.dimension_sections` (the pairs that follow time, height and width): for text all
/// three are the token's position, so a family with sections computes plain RoPE, provided that
/// every pair belongs to one of them.
void check_rope_sections(const Keys& keys, uint32_t n_rot);

}  // namespace quern
