#include "models/families/families.h"
#include "models/families/hybrid.h"

namespace quern {

// Qwen 3.5: three gated delta nets to one gated attention. V head h belongs to K head h mod n_k.
ModelGraph build_qwen35(const gguf::File& file) {
  GraphBuilder b(file, "qwen35");
  b.refuse_experts();
  const Hybrid hybrid = read_hybrid(b, DeltaHeadMap::tiled, true);
  const Size n_ff = b.read_feed_forward_length();

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
    x = b.add(x, b.feed_forward(n, n_ff, GluActivation::silu), "ffn_residual");
  }
  return b.finish(x);
}

}  // namespace quern
