#include "models/builder.h"
#include "models/families/families.h"
#include "models/rope.h"

namespace quern {

// OLMoE: queries and keys are normalised over their whole width before the split into heads; the
// experts' weights are the softmax's own, not renormalised.
ModelGraph build_olmoe(const gguf::File& file) {
  GraphBuilder b(file, "olmoe");
  const Heads heads = b.read_heads();
  const Experts experts = b.read_experts({.renormalised = false, .divided = false});
  b.keys().must_be_zero("attention.clamp_kqv");
  const uint32_t rope =
      b.add_rope(make_rope(RopeKind::neox, b.read_rotary_dimensions(heads), b.read_rope_base(),
                           read_rope_scaling(b.keys(), b.context_length())));

  ValueId x = b.embed();
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    b.begin_layer(layer);
    ValueId n = b.rms_norm(x, "attn_norm");
    QkvValues qkv = b.qkv(n, heads);
    qkv.q = b.rms_norm(qkv.q, "attn_q_norm");
    qkv.k = b.rms_norm(qkv.k, "attn_k_norm");
    qkv.q = b.rotate(qkv.q, heads, rope, "q_rope");
    qkv.k = b.rotate(qkv.k, heads, rope, "k_rope");
    const ValueId attention = b.attention(qkv, heads);
    x = b.add(x, b.linear(attention, "attn_output", b.n_embd()), "attn_residual");
    n = b.rms_norm(x, "ffn_norm");
    x = b.add(x, b.routed_experts(n, experts), "ffn_residual");
  }
  return b.finish(x, {.output_required = true});
}

}  // namespace quern
