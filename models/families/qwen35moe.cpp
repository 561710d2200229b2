#include "models/families/families.h"
#include "models/families/hybrid.h"

namespace quern {

// Qwen 3.5 MoE: Qwen 3.5's layers with routed experts and a shared one for the feed-forward.
ModelGraph build_qwen35moe(const gguf::File& file) {
  GraphBuilder b(file, "qwen35moe");
  const Hybrid hybrid = read_hybrid(b, DeltaHeadMap::tiled, true);
  const Experts experts = b.read_experts({.renormalised = true});
  const Size shared_width = read_shared_width(b);

  ValueId x = b.embed();
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    begin_hybrid_layer(b, hybrid, layer);
    ValueId n = b.rms_norm(x, "attn_norm");
    ValueId mixed = no_value;
    if (hybrid.recurrent[layer]) {
      const ValueId alpha = b.linear(n, "ssm_alpha", hybrid.delta.n_v_heads);
      const ValueId beta = b.linear(n, "ssm_beta", hybrid.delta.n_v_heads);
      mixed = gated_delta_net(b, hybrid, n, alpha, beta);
    } else {
      mixed = gated_attention(b, hybrid, n);
    }
    x = b.add(x, mixed, "attn_residual");
    n = b.rms_norm(x, "post_attention_norm");
    x = b.add(x, experts_with_shared(b, experts, shared_width, n), "ffn_residual");
  }
  return b.finish(x);
}

}  // namespace quern
