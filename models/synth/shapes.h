#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/quant/quant_type.h"

namespace quern::synth {

/// Gated delta rule layers of a hybrid shape: three of four layers have them.
struct DeltaShape {
  uint32_t key_heads = 0, value_heads = 0, head_dim = 0, convolution = 0;
};

/// The dimensions of a model, as its metadata gives them. A `-long` or `-tiny` shape is a small
/// model of the family, for tests; the others are published ones.
struct Shape {
  std::string_view name, architecture;
  uint32_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t feed_forward = 0, vocabulary = 0;
  float rope_base = 0;
  uint32_t context = 0;
  uint32_t rotated = 0;  ///< Dimensions of a head that RoPE turns; 0: all.
  uint32_t experts = 0, experts_used = 0;
  uint32_t expert_feed_forward = 0;  ///< 0: `feed_forward`, and no key of its own.
  uint32_t shared_feed_forward = 0;  ///< 0: no shared expert.
  std::optional<DeltaShape> delta = std::nullopt;
};

/// Which quant type each kind of matrix gets.
struct Mix {
  std::string_view name;
  QuantType base;        ///< Whatever is not named below.
  QuantType embeddings;  ///< token_embd
  QuantType ffn;         ///< The dense feed-forward, or the routed experts where there are some.
  QuantType more;        ///< attn_v and the down projections of layers that get more bits.
  QuantType head;        ///< output
};

/// How a tensor's values are drawn.
enum class Values {
  random,  ///< Standard deviation about 1 / sqrt(row length).
  one,     ///< Norm weights: all 1.
  decay,   ///< ssm_a: -exp(u), u uniform in -1 … 2.
};

/// One tensor of a synthetic model.
struct SynthTensor {
  std::string name;
  std::vector<uint64_t> shape;
  QuantType type = QuantType::f32;
  Values values = Values::random;

  uint64_t bytes() const;
};

/// All shapes and mixes, in the order in which they are listed.
std::span<const Shape> shapes();
std::span<const Mix> mixes();
/// By name. Throw Error (`usage`) that lists the known names.
const Shape& shape_named(std::string_view name);
const Mix& mix_named(std::string_view name);

/// What a file of this shape says about itself.
gguf::Metadata metadata_of(const Shape& shape);
/// The tensors of a file of this shape and mix, in file order.
std::vector<SynthTensor> tensors_of(const Shape& shape, const Mix& mix);
/// The bytes of all of them, and their number of values.
uint64_t total_bytes(const std::vector<SynthTensor>& tensors);
uint64_t total_values(const std::vector<SynthTensor>& tensors);

}  // namespace quern::synth
