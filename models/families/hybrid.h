#pragma once

#include <string>
#include <vector>

#include "models/builder.h"

namespace quern {

/// What the families with both recurrent and attention layers (Qwen 3 Next, Qwen 3.5) share.
struct Hybrid {
  Heads heads;
  uint32_t rope = 0;
  GraphBuilder::DeltaShape delta;
  Size conv_kernel;
  std::vector<bool> recurrent;  ///< Of each trunk layer.
  std::string recurrent_key;    ///< The key that says which layers are.
};

/// Reads and checks the keys of a hybrid. V heads lie as `head_map` says; with `sections`,
/// `rope.dimension_sections` is required.
Hybrid read_hybrid(GraphBuilder& b, DeltaHeadMap head_map, bool sections);

/// Starts a layer, naming its kind for errors about missing tensors.
void begin_hybrid_layer(GraphBuilder& b, const Hybrid& hybrid, uint32_t layer);

/// Full attention with QK-norm, partial RoPE and an output gate beside each query head.
ValueId gated_attention(GraphBuilder& b, const Hybrid& hybrid, ValueId n);

/// The gated delta rule: convolution, recurrence, norm gated by z, output projection. `alpha` and
/// `beta` are the projections that decay and write strength come from.
ValueId gated_delta_net(GraphBuilder& b, const Hybrid& hybrid, ValueId n, ValueId alpha,
                        ValueId beta);

/// Routed experts, plus one shared expert of this width behind a sigmoid gate.
ValueId experts_with_shared(GraphBuilder& b, const Experts& experts, const Size& shared_width,
                            ValueId n);

/// `expert_shared_feed_forward_length`.
Size read_shared_width(const GraphBuilder& b);

}  // namespace quern
