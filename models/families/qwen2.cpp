#include "models/builder.h"
#include "models/families/families.h"
#include "models/rope.h"

namespace quern {

// Qwen 2 and 2.5: Llama's layer with biases on q, k and v and NeoX pairs.
ModelGraph build_qwen2(const gguf::File& file) {
  GraphBuilder b(file, "qwen2");
  b.refuse_experts();
  const Heads heads = b.read_heads();
  const Size n_ff = b.read_feed_forward_length();
  const uint32_t rope =
      b.add_rope(make_rope(RopeKind::neox, b.read_rotary_dimensions(heads), b.read_rope_base(),
                           read_rope_scaling(b.keys(), b.context_length())));

  ValueId x = b.embed();
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    b.begin_layer(layer);
    ValueId n = b.rms_norm(x, "attn_norm");
    QkvValues qkv = b.qkv(n, heads, {.biases_required = true});
    qkv.q = b.rotate(qkv.q, heads, rope, "q_rope");
    qkv.k = b.rotate(qkv.k, heads, rope, "k_rope");
    const ValueId attention = b.attention(qkv, heads);
    x = b.add(x, b.linear(attention, "attn_output", b.n_embd()), "attn_residual");
    n = b.rms_norm(x, "ffn_norm");
    x = b.add(x, b.feed_forward(n, n_ff, GluActivation::silu), "ffn_residual");
  }
  return b.finish(x);
}

}  // namespace quern
