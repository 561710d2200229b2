#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/quant/quant_type.h"

namespace quern {

using ValueId = uint32_t;
inline constexpr ValueId no_value = ~ValueId{0};

/// Some rows of a named 2-D weight (3-D: of each expert's matrix): row r of the slice is row
/// offset + (r / block) * stride + r % block of the tensor. A whole matrix has offset 0 and
/// block = stride = rows.
struct WeightSlice {
  std::string tensor;
  QuantType type = QuantType::f32;
  uint64_t k = 0;     ///< Row length (input width).
  uint64_t rows = 0;  ///< Rows of the slice (output width; of one expert for 3-D tensors).
  uint64_t experts = 1;
  uint64_t tensor_rows = 0;  ///< Rows of the tensor (of one expert).
  uint64_t offset = 0;
  uint64_t block = 0;
  uint64_t stride = 0;
};

/// A 1-D f32 parameter (norm weight, bias, ssm_a …): `size` values of the tensor from `offset` on
/// (a part of a fused `attn_qkv.bias`; 0 elsewhere). The name is empty where the parameter is
/// absent.
struct VectorRef {
  std::string tensor;
  uint64_t size = 0;
  uint64_t offset = 0;
  bool present() const { return !tensor.empty(); }
};

enum class GluActivation { silu, gelu_tanh };
enum class RopeKind { none, norm, neox };
enum class DeltaHeadMap { tiled, grouped };

/// One rotary embedding: the angles of pair i at position p are p * inverse_frequency[i], cos and
/// sin are multiplied by mscale. All scaling (linear, YaRN, rope_freqs) is already in the
/// frequencies, which are computed in double when the graph is built.
struct Rope {
  RopeKind kind = RopeKind::none;
  uint32_t n_rot = 0;
  std::vector<double> inverse_frequency;  ///< n_rot / 2 values.
  double mscale = 1;
};

// ---- operations, in the field's terms. Widths are per token; every value is f32. ----

struct Embed {
  WeightSlice table;
  float scale = 1;
};
/// x -> RMSNorm over groups of `group` values. Input: x.
struct RmsNorm {
  VectorRef weight;
  uint32_t group = 0;
  float eps = 0;
};
/// Inputs: x, z. RMSNorm over groups, then times silu(z).
struct GatedRmsNorm {
  VectorRef weight;
  uint32_t group = 0;
  float eps = 0;
};
/// Input: x. y = W x + bias.
struct Linear {
  WeightSlice weight;
  VectorRef bias;
};
/// Input: x [heads * head_dim]. `rope` indexes ModelGraph::ropes.
struct ApplyRope {
  uint32_t head_dim = 0;
  uint32_t rope = 0;
};
/// Inputs: q, k, v (after norm and RoPE); optionally a fourth, the output gate: out *=
/// sigmoid(gate).
struct Attention {
  uint32_t n_head = 0, n_head_kv = 0, head_dim = 0, value_dim = 0;
  float scale = 1;
  float softcap = 0;
  uint32_t window = 0;  ///< 0: global. Else key j is visible to query i iff i - j < window.
};
/// Inputs: gate, up.
struct Glu {
  GluActivation activation = GluActivation::silu;
};
/// Inputs: a, b.
struct Add {};
/// Inputs: x. Output: the routing value (ids and weights of n_used experts).
struct Route {
  WeightSlice weight;
  uint32_t n_expert = 0, n_used = 0;
  bool renormalise = false;
  float weights_scale = 1;
};
/// Inputs: x, routing. y = sum in slot order of w * down(act(gate x) * up x).
struct RoutedExperts {
  WeightSlice gate, up, down;
  uint32_t n_expert = 0, n_used = 0;
  GluActivation activation = GluActivation::silu;
};
/// Inputs: routed (or residual) sum, shared, x. y = routed + sigmoid(gate . x) * shared.
struct AddGated {
  VectorRef gate;
};
/// Input: u. Depthwise causal convolution with state, then SiLU.
struct CausalConv {
  VectorRef weight;
  uint32_t channels = 0, kernel = 0;
};
/// Inputs: x (q | k | v), a (alpha), b (beta).
struct DeltaRule {
  VectorRef ssm_a, dt_bias;
  uint32_t n_k_heads = 0, n_v_heads = 0, dim = 0;
  DeltaHeadMap head_map = DeltaHeadMap::tiled;
  float eps = 0;
};
/// Input: x. Keeps the rows whose logits are asked for.
struct SelectOutputs {};
/// Input: x. c * tanh(x / c).
struct Softcap {
  float cap = 0;
};

using Operation =
    std::variant<Embed, RmsNorm, GatedRmsNorm, Linear, ApplyRope, Attention, Glu, Add, Route,
                 RoutedExperts, AddGated, CausalConv, DeltaRule, SelectOutputs, Softcap>;

struct Node {
  Operation op;
  std::vector<ValueId> inputs;
  ValueId output = no_value;
  int32_t layer = -1;  ///< -1: embedding and head.
  std::string name;    ///< For people: "blk.3.attn_q".
};

struct ValueInfo {
  uint32_t width = 0;
  bool selected = false;  ///< One row per requested output instead of one per token.
};

/// What a model computes, as a list of nodes in order: no device, no tile, no fusion. Token count
/// and positions are symbolic. Pure: the same file gives the same graph.
struct ModelGraph {
  std::string architecture;
  std::string name;
  std::string fingerprint;
  uint32_t n_layers = 0;  ///< Trunk layers.
  uint32_t embedding_length = 0;
  uint32_t vocabulary = 0;
  uint32_t context_length = 0;
  std::vector<Rope> ropes;
  std::vector<Node> nodes;
  std::vector<ValueInfo> values;
  ValueId logits = no_value;
  uint64_t parameters = 0;  ///< Elements of all tensors that the graph reads, counted once.
  uint64_t weight_bytes = 0;
  /// Tensors of the file that no node reads and that are not known to be harmless (the blocks after
  /// the trunk are), in file order: what a user should be told about.
  std::vector<std::string> unused_tensors;
  /// Metadata keys that the family looked for, present or not, sorted.
  std::vector<std::string> keys_read;
};

}  // namespace quern
