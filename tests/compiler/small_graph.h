#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/graph.h"

namespace quern::test {

/// A graph written by hand, node by node. Widths are small and weights exist by name alone.
class SmallGraph {
 public:
  static constexpr uint32_t n_embd = 64, head_dim = 32, n_head = 2, n_head_kv = 1, vocabulary = 96;

  SmallGraph() {
    graph_.architecture = "small";
    graph_.name = "by hand";
    graph_.fingerprint = "f";
    graph_.vocabulary = vocabulary;
    graph_.embedding_length = n_embd;
    graph_.context_length = 4096;
    Rope rope;
    rope.kind = RopeKind::neox;
    rope.n_rot = head_dim;
    rope.inverse_frequency.assign(head_dim / 2, 0.5);
    graph_.ropes = {rope};
  }

  ValueId add(Operation op, std::vector<ValueId> inputs, uint32_t width, const std::string& name,
              bool selected = false) {
    const auto output = static_cast<ValueId>(graph_.values.size());
    graph_.values.push_back({width, selected});
    graph_.nodes.push_back({std::move(op), std::move(inputs), output, layer_,
                            layer_ < 0 ? name : "blk." + std::to_string(layer_) + "." + name});
    return output;
  }
  void layer(int32_t layer) { layer_ = layer; }

  WeightSlice matrix(const std::string& name, uint64_t rows, uint64_t k) const {
    WeightSlice slice;
    slice.tensor = name + "." + std::to_string(layer_);
    slice.type = QuantType::f16;
    slice.k = k;
    slice.rows = slice.tensor_rows = slice.block = slice.stride = rows;
    return slice;
  }
  VectorRef vector(const std::string& name, uint64_t size) const {
    return {name + "." + std::to_string(layer_), size, 0};
  }
  uint32_t width(ValueId value) const { return graph_.values[value].width; }

  ValueId embed() { return add(Embed{matrix("embd", vocabulary, n_embd)}, {}, n_embd, "embed"); }
  ValueId linear(ValueId x, const std::string& name, uint32_t rows, bool bias = false) {
    return add(Linear{matrix(name, rows, width(x)), bias ? vector(name + ".b", rows) : VectorRef{}},
               {x}, rows, name, selected(x));
  }
  ValueId norm(ValueId x, const std::string& name, uint32_t group = 0) {
    const uint32_t size = group == 0 ? width(x) : group;
    return add(RmsNorm{vector(name, size), size, 1e-6f}, {x}, width(x), name, selected(x));
  }
  ValueId sum(ValueId a, ValueId b, const std::string& name) {
    return add(Add{}, {a, b}, width(a), name, selected(a));
  }
  ValueId rope(ValueId x, const std::string& name) {
    return add(ApplyRope{head_dim, 0}, {x}, width(x), name);
  }
  ValueId attend(ValueId q, ValueId k, ValueId v, std::vector<ValueId> gate = {}) {
    std::vector<ValueId> inputs = {q, k, v};
    inputs.insert(inputs.end(), gate.begin(), gate.end());
    return add(Attention{n_head, n_head_kv, head_dim, head_dim, 0.25f}, inputs, n_head * head_dim,
               "attention");
  }
  ValueId attention_block(ValueId n) {
    const ValueId q = rope(linear(n, "q", n_head * head_dim), "q_rope");
    const ValueId k = rope(linear(n, "k", n_head_kv * head_dim), "k_rope");
    return attend(q, k, linear(n, "v", n_head_kv * head_dim));
  }
  ValueId feed_forward(ValueId n) {
    const ValueId gate = linear(n, "gate", 2 * n_embd), up = linear(n, "up", 2 * n_embd);
    const ValueId act = add(Glu{}, {gate, up}, 2 * n_embd, "act", selected(gate));
    return linear(act, "down", n_embd);
  }
  ValueId select(ValueId x) { return add(SelectOutputs{}, {x}, width(x), "select", true); }

  /// A layer as llama has it.
  ValueId dense_layer(ValueId x, int32_t number) {
    layer(number);
    x = sum(x, linear(attention_block(norm(x, "attn_norm")), "o", n_embd), "attn_res");
    x = sum(x, feed_forward(norm(x, "ffn_norm")), "ffn_res");
    layer(-1);
    return x;
  }
  ModelGraph finish(ValueId x) {
    layer(-1);
    graph_.logits = linear(norm(select(x), "output_norm"), "output", vocabulary);
    return graph_;
  }
  ModelGraph& graph() { return graph_; }

 private:
  bool selected(ValueId value) const { return graph_.values[value].selected; }

  ModelGraph graph_;
  int32_t layer_ = -1;
};

}  // namespace quern::test
