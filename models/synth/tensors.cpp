// The metadata and the tensors of a shape, as files of its family have them.

#include <fmt/format.h>

#include <utility>

#include "models/synth/shapes.h"

namespace quern::synth {
namespace {

/// The layers that the _k_m mixes give more bits: the first and the last eighth, and every third
/// between.
bool more_bits(uint32_t layer, uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/// Lists the tensors of one model.
class Lister {
 public:
  Lister(const Shape& shape, const Mix& mix) : shape_(shape), mix_(mix) {}

  std::vector<SynthTensor> list() {
    matrix("token_embd", {shape_.width, shape_.vocabulary}, mix_.embeddings);
    vector("output_norm.weight", shape_.width, Values::one);
    matrix("output", {shape_.width, shape_.vocabulary}, mix_.head);
    for (uint32_t i = 0; i < shape_.layers; ++i) add_layer(i);
    return std::move(tensors_);
  }

 private:
  void add_layer(uint32_t layer) {
    prefix_ = fmt::format("blk.{}.", layer);
    more_ = more_bits(layer, shape_.layers);
    vector("attn_norm.weight", shape_.width, Values::one);
    if (!shape_.delta || (layer + 1) % 4 == 0) {
      add_attention();
    } else {
      add_delta(*shape_.delta);
    }
    vector(shape_.delta ? "post_attention_norm.weight" : "ffn_norm.weight", shape_.width,
           Values::one);
    if (shape_.experts > 0) {
      add_experts();
    } else {
      add_feed_forward();
    }
  }

  void add_attention() {
    const uint64_t q = uint64_t{shape_.heads} * shape_.head_dim;
    const uint64_t kv = uint64_t{shape_.kv_heads} * shape_.head_dim;
    // Hybrid models gate attention: attn_q holds the gates too.
    matrix("attn_q", {shape_.width, shape_.delta ? 2 * q : q}, mix_.base);
    matrix("attn_k", {shape_.width, kv}, mix_.base);
    matrix("attn_v", {shape_.width, kv}, more_ ? mix_.more : mix_.base);
    matrix("attn_output", {q, shape_.width}, mix_.base);
    if (shape_.architecture == "llama") return;
    const bool whole = shape_.architecture == "olmoe";  // normed over all heads at once
    vector("attn_q_norm.weight", whole ? q : shape_.head_dim, Values::one);
    vector("attn_k_norm.weight", whole ? kv : shape_.head_dim, Values::one);
  }

  void add_delta(const DeltaShape& delta) {
    const uint64_t values = uint64_t{delta.value_heads} * delta.head_dim;
    const uint64_t qkv = 2 * uint64_t{delta.key_heads} * delta.head_dim + values;
    matrix("attn_qkv", {shape_.width, qkv}, mix_.base);
    matrix("attn_gate", {shape_.width, values}, mix_.base);
    matrix("ssm_conv1d", {delta.convolution, qkv}, QuantType::f32);
    vector("ssm_dt.bias", delta.value_heads, Values::random);
    vector("ssm_a", delta.value_heads, Values::decay);
    matrix("ssm_beta", {shape_.width, delta.value_heads}, mix_.base);
    matrix("ssm_alpha", {shape_.width, delta.value_heads}, mix_.base);
    vector("ssm_norm.weight", delta.head_dim, Values::one);
    matrix("ssm_out", {values, shape_.width}, mix_.base);
  }

  void add_experts() {
    const uint64_t n = shape_.experts;
    const uint64_t width =
        shape_.expert_feed_forward > 0 ? shape_.expert_feed_forward : shape_.feed_forward;
    matrix("ffn_gate_inp", {shape_.width, n}, QuantType::f32);
    matrix("ffn_gate_exps", {shape_.width, width, n}, mix_.ffn);
    matrix("ffn_up_exps", {shape_.width, width, n}, mix_.ffn);
    matrix("ffn_down_exps", {width, shape_.width, n}, ffn_down());
    if (shape_.shared_feed_forward == 0) return;
    const uint64_t shared = shape_.shared_feed_forward;
    vector("ffn_gate_inp_shexp.weight", shape_.width, Values::random);
    matrix("ffn_gate_shexp", {shape_.width, shared}, mix_.base);
    matrix("ffn_up_shexp", {shape_.width, shared}, mix_.base);
    matrix("ffn_down_shexp", {shared, shape_.width}, more_ ? mix_.more : mix_.base);
  }

  void add_feed_forward() {
    matrix("ffn_gate", {shape_.width, shape_.feed_forward}, mix_.ffn);
    matrix("ffn_up", {shape_.width, shape_.feed_forward}, mix_.ffn);
    matrix("ffn_down", {shape_.feed_forward, shape_.width}, ffn_down());
  }

  /// A mix with a type of its own for the feed-forward has it in all layers.
  QuantType ffn_down() const { return more_ && mix_.ffn == mix_.base ? mix_.more : mix_.ffn; }

  void matrix(std::string_view name, std::vector<uint64_t> extents, QuantType type) {
    tensors_.push_back(
        {fmt::format("{}{}.weight", prefix_, name), std::move(extents), type, Values::random});
  }
  void vector(std::string_view name, uint64_t length, Values values) {
    tensors_.push_back({fmt::format("{}{}", prefix_, name), {length}, QuantType::f32, values});
  }

  const Shape& shape_;
  const Mix& mix_;
  std::string prefix_;
  bool more_ = false;
  std::vector<SynthTensor> tensors_;
};

uint64_t values_of(const SynthTensor& tensor) {
  uint64_t values = 1;
  for (const uint64_t extent : tensor.shape) values *= extent;
  return values;
}

}  // namespace

uint64_t SynthTensor::bytes() const {
  return row_bytes(type, shape[0]) * (values_of(*this) / shape[0]);
}

gguf::Metadata metadata_of(const Shape& shape) {
  gguf::Metadata metadata;
  const std::string arch(shape.architecture);
  const auto number = [&](std::string_view key, uint32_t value) {
    metadata.set_u32(fmt::format("{}.{}", arch, key), value);
  };
  metadata.set_string("general.architecture", arch);
  metadata.set_string("general.name", fmt::format("{} (random weights)", shape.name));
  metadata.set_string("tokenizer.ggml.model", "none");
  number("vocab_size", shape.vocabulary);
  number("block_count", shape.layers);
  number("context_length", shape.context);
  number("embedding_length", shape.width);
  number("feed_forward_length", shape.feed_forward);
  number("attention.head_count", shape.heads);
  number("attention.head_count_kv", shape.kv_heads);
  number("attention.key_length", shape.head_dim);
  number("attention.value_length", shape.head_dim);
  metadata.set_f32(arch + ".rope.freq_base", shape.rope_base);
  number("rope.dimension_count", shape.rotated > 0 ? shape.rotated : shape.head_dim);
  metadata.set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6F);
  if (shape.experts > 0) {
    number("expert_count", shape.experts);
    number("expert_used_count", shape.experts_used);
    if (shape.expert_feed_forward > 0) {
      number("expert_feed_forward_length", shape.expert_feed_forward);
    }
    if (shape.shared_feed_forward > 0) {
      number("expert_shared_feed_forward_length", shape.shared_feed_forward);
    }
  }
  if (shape.delta) {
    number("ssm.conv_kernel", shape.delta->convolution);
    number("ssm.inner_size", shape.delta->value_heads * shape.delta->head_dim);
    number("ssm.state_size", shape.delta->head_dim);
    number("ssm.time_step_rank", shape.delta->value_heads);
    number("ssm.group_count", shape.delta->key_heads);
    number("full_attention_interval", 4);
    metadata.set(arch + ".rope.dimension_sections", {gguf::ValueType::array, gguf::ValueType::i32,
                                                     std::vector<int64_t>{11, 11, 10, 0}});
  }
  return metadata;
}

std::vector<SynthTensor> tensors_of(const Shape& shape, const Mix& mix) {
  return Lister(shape, mix).list();
}

uint64_t total_bytes(const std::vector<SynthTensor>& tensors) {
  uint64_t bytes = 0;
  for (const SynthTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

uint64_t total_values(const std::vector<SynthTensor>& tensors) {
  uint64_t values = 0;
  for (const SynthTensor& tensor : tensors) values += values_of(tensor);
  return values;
}

}  // namespace quern::synth
