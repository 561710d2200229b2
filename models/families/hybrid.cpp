#include "models/families/hybrid.h"

#include <fmt/format.h>

#include "models/rope.h"

namespace quern {
namespace {

/// `attention.recurrent_layers` says it layer by layer; `full_attention_interval` n makes every
/// n-th layer an attention layer. A file with both must not contradict itself.
void read_recurrent_layers(const GraphBuilder& b, Hybrid& hybrid) {
  constexpr std::string_view array_key = "attention.recurrent_layers";
  constexpr std::string_view interval_key = "full_attention_interval";
  const bool interval_given = b.keys().has(interval_key);
  const uint64_t interval = b.keys().size_or(interval_key, {4, ""}, {1, 4096}).value;
  std::vector<bool> by_interval;
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    by_interval.push_back((layer + 1) % interval != 0);
  }
  hybrid.recurrent = by_interval;
  hybrid.recurrent_key = b.keys().full(interval_key);
  if (!b.keys().has(array_key)) return;

  std::vector<bool> flags = b.keys().flags(array_key);
  if (flags.size() != b.n_layers() && flags.size() != b.n_blocks().value) {
    b.keys().refuse(array_key,
                    fmt::format("has {} values for {} blocks", flags.size(), b.n_blocks().value));
  }
  flags.resize(b.n_layers());
  if (interval_given && flags != by_interval) {
    b.keys().refuse(array_key,
                    fmt::format("contradicts {} {}", b.keys().full(interval_key), interval));
  }
  hybrid.recurrent = std::move(flags);
  hybrid.recurrent_key = b.keys().full(array_key);
}

void read_delta_shape(const GraphBuilder& b, DeltaHeadMap head_map, Hybrid& hybrid) {
  const Keys& keys = b.keys();
  constexpr Bounds heads = {1, 1 << 16};
  hybrid.conv_kernel = keys.size("ssm.conv_kernel", {2, 64});
  hybrid.delta = {.n_k_heads = keys.size("ssm.group_count", heads),
                  .n_v_heads = keys.size("ssm.time_step_rank", heads),
                  .head_length = keys.size("ssm.state_size", heads),
                  .head_map = head_map};
  const auto& [n_k, n_v, length, map] = hybrid.delta;
  if (n_v.value % n_k.value != 0) {
    keys.refuse("ssm.group_count", fmt::format("is {}, which does not divide {} {}", n_k.value,
                                               n_v.origin, n_v.value));
  }
  const Size inner = keys.size("ssm.inner_size");
  if (inner.value != (n_v * length).value) {
    keys.refuse("ssm.inner_size", fmt::format("is {} where {} is {}", inner.value,
                                              (n_v * length).origin, (n_v * length).value));
  }
}

}  // namespace

Hybrid read_hybrid(GraphBuilder& b, DeltaHeadMap head_map, bool sections) {
  Hybrid hybrid;
  hybrid.heads = b.read_heads();
  if (hybrid.heads.key_length.value != hybrid.heads.value_length.value) {
    b.keys().refuse("attention.value_length",
                    fmt::format("is {}, unlike {} {}, which the output gate needs",
                                hybrid.heads.value_length.value, hybrid.heads.key_length.origin,
                                hybrid.heads.key_length.value));
  }
  read_delta_shape(b, head_map, hybrid);
  read_recurrent_layers(b, hybrid);
  const uint32_t n_rot = b.read_rotary_dimensions(hybrid.heads, true);
  if (sections) check_rope_sections(b.keys(), n_rot);
  hybrid.rope = b.add_rope(make_rope(RopeKind::neox, n_rot, b.read_rope_base(),
                                     read_rope_scaling(b.keys(), b.context_length())));
  return hybrid;
}

void begin_hybrid_layer(GraphBuilder& b, const Hybrid& hybrid, uint32_t layer) {
  b.begin_layer(layer, fmt::format("{} by {}",
                                   hybrid.recurrent[layer] ? "is recurrent" : "has full attention",
                                   hybrid.recurrent_key));
}

ValueId gated_attention(GraphBuilder& b, const Hybrid& hybrid, ValueId n) {
  const Heads& heads = hybrid.heads;
  QkvValues qkv = b.qkv(n, heads, {.gated = true});
  qkv.q = b.head_norm(qkv.q, "attn_q_norm", heads.key_length);
  qkv.k = b.head_norm(qkv.k, "attn_k_norm", heads.key_length);
  qkv.q = b.rotate(qkv.q, heads, hybrid.rope, "q_rope");
  qkv.k = b.rotate(qkv.k, heads, hybrid.rope, "k_rope");
  return b.linear(b.attention(qkv, heads), "attn_output", b.n_embd());
}

ValueId gated_delta_net(GraphBuilder& b, const Hybrid& hybrid, ValueId n, ValueId alpha,
                        ValueId beta) {
  const auto& [n_k, n_v, length, map] = hybrid.delta;
  const Size value_width = n_v * length;
  const ValueId qkv = b.linear(n, "attn_qkv", 2 * (n_k * length) + value_width);
  const ValueId z = b.linear(n, "attn_gate", value_width);
  const ValueId mixed = b.causal_conv(qkv, "ssm_conv1d", hybrid.conv_kernel);
  const ValueId y = b.delta_rule(mixed, alpha, beta, hybrid.delta);
  return b.linear(b.gated_rms_norm(y, z, "ssm_norm", length), "ssm_out", b.n_embd());
}

ValueId experts_with_shared(GraphBuilder& b, const Experts& experts, const Size& shared_width,
                            ValueId n) {
  const ValueId routed = b.routed_experts(n, experts);
  const ValueId shared = b.feed_forward(n, shared_width, GluActivation::silu, "_shexp");
  return b.add_gated(routed, shared, n, "ffn_gate_inp_shexp");
}

Size read_shared_width(const GraphBuilder& b) {
  return b.keys().uniform("expert_shared_feed_forward_length", b.n_blocks().value);
}

}  // namespace quern
