#include "models/builder.h"
#include "models/families/families.h"
#include "models/rope.h"

namespace quern {

// Llama 1 to 3 and what shares their layer (Mistral, SmolLM2 …); with `expert_count`, Mixtral.
ModelGraph build_llama(const gguf::File& file) {
  GraphBuilder b(file, "llama");
  const Heads heads = b.read_heads();
  const uint32_t n_rot = b.read_rotary_dimensions(heads);
  const Experts experts = b.read_experts({.required = false, .divided = false});
  const Size n_ff = experts.present() ? experts.feed_forward_length : b.read_feed_forward_length();
  const double scale =
      b.keys().real_or("attention.scale", 0, {.low = 0, .high = 1e3, .with_low = true});
  const Size pairs = {n_rot / 2, "half of llama.rope.dimension_count"};
  const uint32_t rope = b.add_rope(make_rope(RopeKind::norm, n_rot, b.read_rope_base(),
                                             read_rope_scaling(b.keys(), b.context_length()),
                                             b.optional_values("rope_freqs.weight", pairs)));

  ValueId x = b.embed();
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    b.begin_layer(layer, experts.present() ? "has experts by llama.expert_count" : "");
    ValueId n = b.rms_norm(x, "attn_norm");
    QkvValues qkv = b.qkv(n, heads);
    qkv.q = b.rotate(qkv.q, heads, rope, "q_rope");
    qkv.k = b.rotate(qkv.k, heads, rope, "k_rope");
    const ValueId attention = b.attention(qkv, heads, {.scale = scale});
    x = b.add(x, b.linear(attention, "attn_output", b.n_embd()), "attn_residual");
    n = b.rms_norm(x, "ffn_norm");
    const ValueId ffn = experts.present() ? b.routed_experts(n, experts)
                                          : b.feed_forward(n, n_ff, GluActivation::silu);
    x = b.add(x, ffn, "ffn_residual");
  }
  return b.finish(x);
}

}  // namespace quern
