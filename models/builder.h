#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/file.h"
#include "models/graph.h"
#include "models/keys.h"

namespace quern {

/// The heads of an attention layer.
struct Heads {
  Size n_head, n_head_kv;
  Size key_length, value_length;  ///< Width of a query or key head, and of a value head.

  Size q() const { return n_head * key_length; }
  Size k() const { return n_head_kv * key_length; }
  Size v() const { return n_head_kv * value_length; }
};

/// The routed experts of a layer; n_expert is 0 where a model has none.
struct Experts {
  Size n_expert, n_used;
  Size feed_forward_length;  ///< Of one expert.
  bool renormalised = false;
  bool present() const { return n_expert.value != 0; }
};

/// The projections of one attention layer. `gate` is there in gated attention alone.
struct QkvValues {
  ValueId q = no_value, k = no_value, v = no_value, gate = no_value;
};

struct QkvOptions {
  bool gated = false;  ///< attn_q holds, head by head, the query and then the output gate.
  bool biases_required = false;
};

struct AttentionOptions {
  double scale = 0;  ///< 0: 1 / sqrt(key length).
  uint32_t window = 0;
  ValueId gate = no_value;
};

/// Builds a family's graph operation by operation, and checks on the way that every tensor an
/// operation needs is in the file with the shape that metadata gives it. Names of operations in a
/// layer are the file's own without "blk.N." and ".weight". A linear operation adds the bias that
/// lies beside its weight. Errors are `bad_model` and name the key or the tensor.
class GraphBuilder {
 public:
  /// Reads what all families share and checks it: context, width, blocks, eps, vocabulary.
  GraphBuilder(const gguf::File& file, std::string architecture);

  const Keys& keys() const { return keys_; }
  const Size& n_embd() const { return n_embd_; }
  const Size& n_blocks() const { return n_blocks_; }     ///< With those after the trunk.
  uint32_t n_layers() const { return graph_.n_layers; }  ///< Of the trunk.
  const Size& context_length() const { return context_length_; }

  /// `attention.head_count` and its companions.
  Heads read_heads() const;
  /// `rope.dimension_count`; a family without `partial` rotation needs it to be the key length.
  uint32_t read_rotary_dimensions(const Heads& heads, bool partial = false) const;
  double read_rope_base(std::string_view key = "rope.freq_base") const;
  Size read_feed_forward_length() const;
  struct ExpertOptions {
    bool required = true;      ///< The family is made of experts; else they may be absent.
    bool renormalised = true;  ///< The weights of the experts used are divided by their sum.
    bool divided = true;       ///< See below.
  };
  /// `expert_count` and its companions. The width of an expert is `expert_feed_forward_length`, or
  /// else `feed_forward_length`, divided by `expert_used_count` where `divided`.
  Experts read_experts(ExpertOptions options) const;
  /// For families without experts: refuses `expert_count` above zero.
  void refuse_experts() const;

  /// Adds a rotary embedding; the result indexes ModelGraph::ropes.
  uint32_t add_rope(Rope rope);
  /// The f32 values of an optional tensor of `n` values, or nothing.
  std::vector<float> optional_values(const std::string& name, const Size& n);

  /// The operations that follow belong to this layer. `kind` tells people what the layer is and by
  /// which key, for errors about tensors that it lacks.
  void begin_layer(uint32_t layer, std::string kind = {});

  ValueId embed(double scale = 1);
  /// RMSNorm over the whole width.
  ValueId rms_norm(ValueId x, std::string_view name);
  /// RMSNorm over each head.
  ValueId head_norm(ValueId x, std::string_view name, const Size& head_length);
  ValueId gated_rms_norm(ValueId x, ValueId z, std::string_view name, const Size& head_length);
  ValueId linear(ValueId x, std::string_view name, const Size& rows);
  /// A linear operation with only the rows offset + (r / block) * stride + r % block of a tensor of
  /// `tensor_rows` rows.
  struct RowPattern {
    uint64_t rows, offset, block, stride;
  };
  ValueId linear_rows(ValueId x, std::string_view name, const Size& tensor_rows, RowPattern pattern,
                      std::string_view part);
  /// The query, key and value projections, from attn_q, attn_k and attn_v or a fused attn_qkv.
  QkvValues qkv(ValueId x, const Heads& heads, QkvOptions options = {});
  ValueId rotate(ValueId x, const Heads& heads, uint32_t rope, std::string_view name);
  ValueId attention(const QkvValues& qkv, const Heads& heads, AttentionOptions options = {});
  /// down(act(gate x) * up x); `suffix` as in "ffn_gate_shexp".
  ValueId feed_forward(ValueId x, const Size& width, GluActivation activation,
                       std::string_view suffix = {});
  ValueId routed_experts(ValueId x, const Experts& experts);
  /// routed + sigmoid(gate . x) * shared.
  ValueId add_gated(ValueId routed, ValueId shared, ValueId x, std::string_view gate_name);
  ValueId add(ValueId a, ValueId b, std::string_view name);
  ValueId causal_conv(ValueId x, std::string_view name, const Size& kernel);
  struct DeltaShape {
    Size n_k_heads, n_v_heads, head_length;
    DeltaHeadMap head_map;
  };
  ValueId delta_rule(ValueId qkv, ValueId alpha, ValueId beta, const DeltaShape& shape);

  struct HeadOptions {
    bool output_required = false;  ///< No output projection tied to the embedding.
    double softcap = 0;
  };
  /// Selects the rows asked for, adds the output norm and the output projection, and hands the
  /// graph over.
  ModelGraph finish(ValueId x, HeadOptions options);
  ModelGraph finish(ValueId x) { return finish(x, {}); }

 private:
  std::string tensor_name(std::string_view name) const;
  const gguf::Tensor* find(const std::string& name);
  const gguf::Tensor& need(const std::string& name, const std::vector<Size>& shape);
  void check_shape(const gguf::Tensor& tensor, const std::vector<Size>& shape) const;
  WeightSlice matrix(const std::string& name, const Size& k, const Size& rows);
  VectorRef vector(const std::string& name, const std::vector<Size>& shape);
  VectorRef optional_vector(const std::string& name, const Size& n);
  WeightSlice expert_matrix(const std::string& name, const Size& k, const Size& rows,
                            const Size& n_expert);
  ValueId emit(Operation op, std::vector<ValueId> inputs, const Size& width, std::string_view name);

  void check_routing_keys(bool renormalised) const;
  void check_blocks() const;
  void check_vocabulary();
  void account_for_tensors();

  const gguf::File& file_;
  Keys keys_;
  ModelGraph graph_;
  Size n_embd_, n_blocks_, context_length_, vocabulary_;
  float eps_ = 0;
  int32_t layer_ = -1;
  std::string layer_kind_;
  std::vector<Size> widths_;  ///< Of each value, with the keys they come from.
  std::set<std::string, std::less<>> used_;
};

}  // namespace quern
