// Attention: the norms, RoPE and cache append between the projections and the scores are one
// kernel.

#include <fmt/format.h>

#include "compiler/passes/fuse.h"

namespace quern::passes {

Fuser::Chain Fuser::trace(size_t attention, ValueId value, std::string_view which) const {
  Chain chain;
  chain.rope = sole_producer<ApplyRope>(value);
  if (chain.rope != no_node) value = node_at(chain.rope).inputs[0];
  chain.norm = sole_producer<RmsNorm>(value);
  if (chain.norm != no_node) value = node_at(chain.norm).inputs[0];
  chain.linear = sole_producer<Linear>(value);
  if (chain.linear == no_node) {
    no_kernel(attention,
              fmt::format("its {} is not a projection with norm and RoPE after it", which));
  }
  return chain;
}

void Fuser::claim_attention(size_t node) {
  const auto& inputs = node_at(node).inputs;
  AttentionChains chains;
  chains.q = trace(node, inputs[0], "query");
  chains.k = trace(node, inputs[1], "key");
  chains.v = trace(node, inputs[2], "value");
  if (chains.v.norm != no_node || chains.v.rope != no_node) {
    no_kernel(node, "its value has a norm or RoPE of its own");
  }
  if ((chains.q.rope == no_node) != (chains.k.rope == no_node)) {
    no_kernel(node, "only one of query and key has RoPE");
  }
  if ((chains.q.norm == no_node) != (chains.k.norm == no_node)) {
    no_kernel(node, "only one of query and key has a norm");
  }
  for (const Chain* chain : {&chains.q, &chains.k, &chains.v}) {
    roles_[chain->linear] = Role::row_part;
    if (chain->norm != no_node) roles_[chain->norm] = Role::absorbed;
    if (chain->rope != no_node) roles_[chain->rope] = Role::absorbed;
  }
  chains_[node] = chains;
}

spec::QkNorm Fuser::qk_norm_kind(size_t node, const AttentionChains& chains) const {
  if (chains.q.norm == no_node) return spec::QkNorm::none;
  const Attention& attention = *op_of<Attention>(node);
  const RmsNorm& q = *op_of<RmsNorm>(chains.q.norm);
  const RmsNorm& k = *op_of<RmsNorm>(chains.k.norm);
  if (q.eps != k.eps) no_kernel(node, "the norms of query and key have different epsilons");
  if (q.group == attention.head_dim && k.group == attention.head_dim) return spec::QkNorm::per_head;
  if (q.group == attention.n_head * attention.head_dim &&
      k.group == attention.n_head_kv * attention.head_dim) {
    return spec::QkNorm::full_width;
  }
  no_kernel(node, "the norms of query and key span neither a head nor the whole row");
}

void Fuser::emit_qkv_post(size_t node, const AttentionChains& chains, uint32_t key_cache,
                          uint32_t value_cache) {
  const Attention& attention = *op_of<Attention>(node);
  const Place& q = place(node_at(chains.q.linear).output, node);
  const Place& k = place(node_at(chains.k.linear).output, node);
  const Place& v = place(node_at(chains.v.linear).output, node);
  if (k.buffer.index != q.buffer.index || v.buffer.index != q.buffer.index) {
    no_kernel(node, "its query, key and value are not projections of one value");
  }
  spec::QkvPostSpec spec{.n_head = attention.n_head,
                         .n_head_kv = attention.n_head_kv,
                         .head_dim = attention.head_dim,
                         .value_dim = attention.value_dim,
                         .row_width = q.row_width,
                         .q_offset = q.offset,
                         .k_offset = k.offset,
                         .v_offset = v.offset,
                         .qk_norm = qk_norm_kind(node, chains)};
  BufferRef q_weight, k_weight, table;
  std::vector<size_t> nodes;
  if (spec.qk_norm != spec::QkNorm::none) {
    const RmsNorm& q_norm = *op_of<RmsNorm>(chains.q.norm);
    spec.eps = q_norm.eps;
    q_weight = vector(q_norm.weight);
    k_weight = vector(op_of<RmsNorm>(chains.k.norm)->weight);
    nodes.insert(nodes.end(), {chains.q.norm, chains.k.norm});
  }
  if (chains.q.rope != no_node) {
    const ApplyRope& q_rope = *op_of<ApplyRope>(chains.q.rope);
    const ApplyRope& k_rope = *op_of<ApplyRope>(chains.k.rope);
    if (q_rope.rope != k_rope.rope || q_rope.head_dim != attention.head_dim ||
        k_rope.head_dim != attention.head_dim) {
      no_kernel(node, "query and key are not rotated alike");
    }
    const Rope& rope = graph_.ropes.at(q_rope.rope);
    nodes.insert(nodes.end(), {chains.q.rope, chains.k.rope});
    if (rope.kind != RopeKind::none) {
      spec.rope = rope.kind == RopeKind::norm ? spec::RopePairing::norm : spec::RopePairing::neox;
      spec.n_rot = rope.n_rot;
      table = {BufferKind::rope, q_rope.rope};
    }
  }
  launch_named(nodes.empty() ? "append" : names_of(nodes) + " + append", spec,
               {q.buffer,
                table,
                q_weight,
                k_weight,
                {BufferKind::state, key_cache},
                {BufferKind::state, value_cache}},
               node,
               "norm, RoPE and the cache's append touch each row of the fused projection once");
}

void Fuser::lower_attention(size_t node) {
  const Attention& attention = *op_of<Attention>(node);
  const AttentionChains& chains = chains_.at(node);
  // Their bytes depend on the cache's type and the context: lay_out sets them.
  const BufferRef key_cache = make_state(StateKind::key_cache, node_at(node).layer, 0);
  const BufferRef value_cache = make_state(StateKind::value_cache, node_at(node).layer, 0);
  emit_qkv_post(node, chains, key_cache.index, value_cache.index);
  const Place& q = place(node_at(chains.q.linear).output, node);
  spec::AttentionSpec spec{.n_head = attention.n_head,
                           .n_head_kv = attention.n_head_kv,
                           .head_dim = attention.head_dim,
                           .value_dim = attention.value_dim,
                           .q_row_width = q.row_width,
                           .q_offset = q.offset,
                           .scale = attention.scale,
                           .softcap = attention.softcap,
                           .window = attention.window};
  BufferRef gate;
  if (node_at(node).inputs.size() > 3) {
    const Place& rows = place(node_at(node).inputs[3], node);
    spec.gate = 1;
    spec.gate_row_width = rows.row_width;
    spec.gate_offset = rows.offset;
    gate = rows.buffer;
  }
  const BufferRef out = make_output(node_at(node).output);
  launch(spec, {q.buffer, key_cache, value_cache, out, gate}, {node},
         spec.gate != 0 ? "the output gate is applied where the output is stored"
                        : "one kernel from the queries and the cache to the rows of output");
}

}  // namespace quern::passes
