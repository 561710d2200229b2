#include <cmath>

#include "models/builder.h"
#include "models/families/families.h"
#include "models/rope.h"

namespace quern {
namespace {

/// Which layers see a sliding window only: `attention.sliding_window_pattern` is the flags
/// themselves or a period n, of which the last layer is global.
std::vector<bool> read_windowed_layers(const GraphBuilder& b) {
  constexpr std::string_view key = "attention.sliding_window_pattern";
  const uint64_t n_blocks = b.n_blocks().value;
  if (b.keys().is_array(key)) {
    std::vector<bool> flags = b.keys().flags(key);
    if (flags.size() != n_blocks) b.keys().refuse(key, "needs one value a block");
    return flags;
  }
  const uint64_t period = b.keys().size_or(key, {6, ""}, {1, 4096}).value;
  std::vector<bool> flags;
  for (uint64_t layer = 0; layer < n_blocks; ++layer) {
    flags.push_back(layer % period < period - 1);
  }
  return flags;
}

}  // namespace

// Gemma 3: norms before and after each half of a layer, GELU, and windowed layers between global
// ones, each kind with its own rotary base.
ModelGraph build_gemma3(const gguf::File& file) {
  GraphBuilder b(file, "gemma3");
  b.refuse_experts();
  const Heads heads = b.read_heads();
  const Size n_ff = b.read_feed_forward_length();
  const uint32_t n_rot = b.read_rotary_dimensions(heads);
  const uint32_t global_rope = b.add_rope(make_rope(
      RopeKind::neox, n_rot, b.read_rope_base(), read_rope_scaling(b.keys(), b.context_length())));
  const uint32_t window_rope = b.add_rope(
      make_rope(RopeKind::neox, n_rot, b.read_rope_base("rope.freq_base_swa"), RopeScaling{}));
  const uint32_t window = b.keys().size("attention.sliding_window", {1, 1u << 31}).u32();
  const std::vector<bool> windowed = read_windowed_layers(b);
  b.keys().must_be_zero("attn_logit_softcapping");
  const double softcap =
      b.keys().real_or("final_logit_softcapping", 0, {.low = 0, .high = 1e6, .with_low = true});
  // The 27B model, told by its depth, scales by the width that a head would have in an even split.
  const double n_embd = b.n_embd().u32();
  const double scale_width =
      b.n_layers() == 62 ? n_embd / heads.n_head.u32() : heads.key_length.u32();

  ValueId x = b.embed(std::sqrt(n_embd));
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    b.begin_layer(layer);
    const uint32_t rope = windowed[layer] ? window_rope : global_rope;
    ValueId n = b.rms_norm(x, "attn_norm");
    QkvValues qkv = b.qkv(n, heads);
    qkv.q = b.head_norm(qkv.q, "attn_q_norm", heads.key_length);
    qkv.k = b.head_norm(qkv.k, "attn_k_norm", heads.key_length);
    qkv.q = b.rotate(qkv.q, heads, rope, "q_rope");
    qkv.k = b.rotate(qkv.k, heads, rope, "k_rope");
    ValueId y = b.attention(
        qkv, heads, {.scale = 1 / std::sqrt(scale_width), .window = windowed[layer] ? window : 0});
    y = b.rms_norm(b.linear(y, "attn_output", b.n_embd()), "post_attention_norm");
    x = b.add(x, y, "attn_residual");
    n = b.rms_norm(x, "ffn_norm");
    y = b.rms_norm(b.feed_forward(n, n_ff, GluActivation::gelu_tanh), "post_ffw_norm");
    x = b.add(x, y, "ffn_residual");
  }
  return b.finish(x, {.softcap = softcap});
}

}  // namespace quern
