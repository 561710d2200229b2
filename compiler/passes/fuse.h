#pragma once

// Inside of the fuse pass: which nodes are computed by which kernel (claims), then the launches.

#include <map>
#include <string>
#include <vector>

#include "compiler/passes/passes.h"

namespace quern::passes {

/// Where a value lies: its floats start at `offset` of every row of `row_width` floats. The buffer
/// is `none` until a launch makes the value.
struct Place {
  BufferRef buffer;
  uint32_t row_width = 0;
  uint32_t offset = 0;
};

/// The buffers of a routing value: what the router and the grouping leave for the experts.
struct Routing {
  BufferRef ids, weights, offsets, pairs;
};

/// Covers one graph with launches. First every pattern claims the nodes that its kernel absorbs;
/// then the nodes are walked in order, and each that is not absorbed elsewhere is lowered.
class Fuser {
 public:
  explicit Fuser(const ModelGraph& graph);
  Program run();

 private:
  static constexpr size_t no_node = ~size_t{0};

  enum class Role {
    alone,     ///< Lowered at its own place.
    row_part,  ///< A projection that shares a GEMM (and its rows of output) with others.
    absorbed,  ///< Computed by the kernel of another node.
  };

  /// The nodes behind one of attention's q, k and v: projection, then norm, then RoPE.
  struct Chain {
    size_t linear = no_node, norm = no_node, rope = no_node;
  };
  struct AttentionChains {
    Chain q, k, v;
  };

  // fuse.cpp: the graph's lookups, claims and simple operations.
  template <class Op>
  const Op* op_of(size_t node) const;
  /// The node that makes `value` if it is an Op that nothing else reads or has claimed; else
  /// no_node.
  template <class Op>
  size_t sole_producer(ValueId value) const;
  void claim();
  void claim_glu(size_t node);
  void claim_softcap(size_t node);
  void claim_add(size_t node);
  void claim_row_parts();
  bool reads_rows_in_place(size_t reader, ValueId value) const;
  void form_groups();
  void lower(size_t node);
  void lower_embed(size_t node);
  void lower_norm(size_t node, ValueId residual, size_t result);
  void lower_gated_norm(size_t node);
  void lower_add(size_t node);
  void lower_add_gated(size_t node);
  void lower_select(size_t node);
  void lower_conv(size_t node);
  void lower_delta(size_t node);

  // fuse_gemm.cpp
  struct Gemm {
    std::vector<size_t> linears;
    spec::Epilogue epilogue = spec::Epilogue::store;
    ValueId residual = no_value;
    float softcap = 0;
    std::vector<size_t> absorbed = {};  ///< Further nodes that the kernel computes.
    std::string reason = {};
  };
  void emit_gemm(const Gemm& gemm, BufferRef y, size_t named_after);
  void lower_linear(size_t node);
  void lower_group(const std::vector<size_t>& linears);
  void lower_glu(size_t node);
  void lower_softcap(size_t node);

  // fuse_attention.cpp
  Chain trace(size_t attention, ValueId value, std::string_view which) const;
  void claim_attention(size_t node);
  void lower_attention(size_t node);
  void emit_qkv_post(size_t node, const AttentionChains& chains, uint32_t key_cache,
                     uint32_t value_cache);
  spec::QkNorm qk_norm_kind(size_t node, const AttentionChains& chains) const;

  // fuse_experts.cpp
  void claim_experts_residual(size_t node);
  void lower_route(size_t node);
  void lower_experts(size_t node);
  /// The node, and the Add whose output it makes where the experts' sum starts from the residual.
  std::vector<size_t> with_sum(size_t node) const;

  // Shared by all.
  const Node& node_at(size_t node) const { return graph_.nodes[node]; }
  uint32_t width(ValueId value) const { return graph_.values[value].width; }
  /// The value's buffer; refuses one that lies inside wider rows, which `reader` cannot read.
  BufferRef dense(ValueId value, size_t reader) const;
  const Place& place(ValueId value, size_t reader) const;
  /// A new activation for the value's rows, or the logits.
  BufferRef make_output(ValueId value);
  BufferRef make_buffer(std::string name, uint64_t bytes_per_row, uint64_t fixed_bytes,
                        bool selected);
  BufferRef make_state(StateKind kind, int32_t layer, uint64_t bytes);
  BufferRef packed(const WeightSlice& slice);
  BufferRef raw(const WeightSlice& slice);
  BufferRef vector(const VectorRef& ref);
  BufferRef weight(WeightForm form, const WeightSlice& slice);
  /// Appends a launch that computes `nodes` (the last gives rows and layer), named after them.
  void launch(const spec::AnySpec& spec, std::vector<BufferRef> buffers,
              const std::vector<size_t>& nodes, std::string_view reason);
  void launch_named(std::string names, const spec::AnySpec& spec, std::vector<BufferRef> buffers,
                    size_t last, std::string_view reason);
  std::string names_of(const std::vector<size_t>& nodes) const;
  [[noreturn]] void no_kernel(size_t node, std::string_view reason) const;

  const ModelGraph& graph_;
  Program program_;
  LayerDecisions decisions_;
  std::vector<size_t> producer_;                ///< By value.
  std::vector<std::vector<size_t>> uses_;       ///< By value.
  std::vector<Role> roles_;                     ///< By node.
  std::vector<Place> places_;                   ///< By value.
  std::map<size_t, size_t> add_operand_;        ///< Add -> the node whose kernel adds the residual.
  std::map<size_t, ValueId> experts_residual_;  ///< RoutedExperts -> what its sum starts from.
  std::map<size_t, size_t> sum_of_;  ///< Last node of such a sum -> the Add that it makes needless.
  std::map<size_t, AttentionChains> chains_;
  std::map<size_t, std::vector<size_t>> groups_;  ///< First projection of a GEMM -> all of them.
  std::map<ValueId, Routing> routings_;
  std::map<std::string, uint32_t> weight_index_;
};

template <class Op>
const Op* Fuser::op_of(size_t node) const {
  return node == no_node ? nullptr : std::get_if<Op>(&graph_.nodes[node].op);
}

template <class Op>
size_t Fuser::sole_producer(ValueId value) const {
  const size_t node = producer_[value];
  if (op_of<Op>(node) == nullptr || uses_[value].size() != 1 || value == graph_.logits ||
      roles_[node] != Role::alone) {
    return no_node;
  }
  return node;
}

}  // namespace quern::passes
