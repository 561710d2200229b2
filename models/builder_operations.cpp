#include <fmt/format.h>

#include <cmath>

#include "models/builder.h"
#include "models/error.h"

namespace quern {

ValueId GraphBuilder::emit(Operation op, std::vector<ValueId> inputs, const Size& width,
                           std::string_view name) {
  bool selected = std::holds_alternative<SelectOutputs>(op);
  for (const ValueId input : inputs) selected = selected || graph_.values[input].selected;
  const auto output = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({.width = width.u32(), .selected = selected});
  widths_.push_back(width);
  graph_.nodes.push_back(
      {.op = std::move(op),
       .inputs = std::move(inputs),
       .output = output,
       .layer = layer_,
       .name = layer_ < 0 ? std::string(name) : fmt::format("blk.{}.{}", layer_, name)});
  return output;
}

ValueId GraphBuilder::embed(double scale) {
  return emit(Embed{.table = matrix("token_embd.weight", n_embd_, vocabulary_),
                    .scale = static_cast<float>(scale)},
              {}, n_embd_, "token_embd");
}

ValueId GraphBuilder::rms_norm(ValueId x, std::string_view name) {
  return head_norm(x, name, widths_[x]);
}

ValueId GraphBuilder::head_norm(ValueId x, std::string_view name, const Size& head_length) {
  return emit(RmsNorm{.weight = vector(tensor_name(name), {head_length}),
                      .group = head_length.u32(),
                      .eps = eps_},
              {x}, widths_[x], name);
}

ValueId GraphBuilder::gated_rms_norm(ValueId x, ValueId z, std::string_view name,
                                     const Size& head_length) {
  return emit(GatedRmsNorm{.weight = vector(tensor_name(name), {head_length}),
                           .group = head_length.u32(),
                           .eps = eps_},
              {x, z}, widths_[x], name);
}

ValueId GraphBuilder::linear(ValueId x, std::string_view name, const Size& rows) {
  const std::string weight = tensor_name(name);
  const std::string bias = weight.substr(0, weight.size() - std::string_view("weight").size());
  return emit(Linear{.weight = matrix(weight, widths_[x], rows),
                     .bias = optional_vector(bias + "bias", rows)},
              {x}, rows, name);
}

ValueId GraphBuilder::linear_rows(ValueId x, std::string_view name, const Size& tensor_rows,
                                  RowPattern pattern, std::string_view part) {
  WeightSlice slice = matrix(tensor_name(name), widths_[x], tensor_rows);
  slice.rows = pattern.rows;
  slice.offset = pattern.offset;
  slice.block = pattern.block;
  slice.stride = pattern.stride;
  return emit(Linear{.weight = std::move(slice), .bias = {}}, {x},
              {pattern.rows, std::string(name)}, part);
}

QkvValues GraphBuilder::qkv(ValueId x, const Heads& heads, QkvOptions options) {
  const Size q = heads.q();
  const Size q_rows = options.gated ? 2 * q : q;
  const bool fused = file_.find(tensor_name("attn_qkv")) != nullptr;
  const Size all = q_rows + heads.k() + heads.v();

  // Rows [offset, offset + rows) of the fused tensor, or all of a tensor of its own.
  const auto project = [&](std::string_view part, uint64_t offset, const Size& tensor_rows,
                           const Size& rows, uint64_t block, uint64_t stride) {
    const std::string_view tensor = fused ? "attn_qkv" : part;
    WeightSlice slice = matrix(tensor_name(tensor), widths_[x], fused ? all : tensor_rows);
    slice.rows = rows.value;
    slice.offset = fused ? offset : slice.offset;
    slice.block = block;
    slice.stride = stride;
    const std::string bias_name = fmt::format("blk.{}.{}.bias", layer_, tensor);
    VectorRef bias;
    if (!options.gated) {
      const Size& n = fused ? all : tensor_rows;
      bias = options.biases_required ? vector(bias_name, {n}) : optional_vector(bias_name, n);
    }
    if (bias.present()) {
      bias.size = rows.value;
      bias.offset = fused ? offset : 0;
    }
    return emit(Linear{.weight = std::move(slice), .bias = std::move(bias)}, {x}, rows, part);
  };
  const auto whole = [&](std::string_view part, uint64_t offset, const Size& rows) {
    return project(part, offset, rows, rows, rows.value, rows.value);
  };

  QkvValues result;
  if (options.gated) {
    const uint64_t head = heads.key_length.value;
    result.q = project("attn_q", 0, q_rows, q, head, 2 * head);
    WeightSlice gate = std::get<Linear>(graph_.nodes.back().op).weight;
    gate.offset += head;
    result.gate = emit(Linear{.weight = std::move(gate), .bias = {}}, {x}, q, "attn_q.gate");
  } else {
    result.q = whole("attn_q", 0, q);
  }
  result.k = whole("attn_k", q_rows.value, heads.k());
  result.v = whole("attn_v", q_rows.value + heads.k().value, heads.v());
  return result;
}

ValueId GraphBuilder::rotate(ValueId x, const Heads& heads, uint32_t rope, std::string_view name) {
  return emit(ApplyRope{.head_dim = heads.key_length.u32(), .rope = rope}, {x}, widths_[x], name);
}

ValueId GraphBuilder::attention(const QkvValues& qkv, const Heads& heads,
                                AttentionOptions options) {
  const double scale = options.scale != 0
                           ? options.scale
                           : 1 / std::sqrt(static_cast<double>(heads.key_length.value));
  std::vector<ValueId> inputs = {qkv.q, qkv.k, qkv.v};
  if (qkv.gate != no_value) inputs.push_back(qkv.gate);
  return emit(Attention{.n_head = heads.n_head.u32(),
                        .n_head_kv = heads.n_head_kv.u32(),
                        .head_dim = heads.key_length.u32(),
                        .value_dim = heads.value_length.u32(),
                        .scale = static_cast<float>(scale),
                        .softcap = 0,
                        .window = options.window},
              std::move(inputs), heads.n_head * heads.value_length, "attention");
}

ValueId GraphBuilder::feed_forward(ValueId x, const Size& width, GluActivation activation,
                                   std::string_view suffix) {
  const ValueId gate = linear(x, fmt::format("ffn_gate{}", suffix), width);
  const ValueId up = linear(x, fmt::format("ffn_up{}", suffix), width);
  const ValueId product =
      emit(Glu{activation}, {gate, up}, width, fmt::format("ffn_act{}", suffix));
  return linear(product, fmt::format("ffn_down{}", suffix), widths_[x]);
}

ValueId GraphBuilder::routed_experts(ValueId x, const Experts& experts) {
  const Size width = widths_[x];
  const Size& n_ff = experts.feed_forward_length;
  const ValueId routing =
      emit(Route{.weight = matrix(tensor_name("ffn_gate_inp"), width, experts.n_expert),
                 .n_expert = experts.n_expert.u32(),
                 .n_used = experts.n_used.u32(),
                 .renormalise = experts.renormalised,
                 .weights_scale = 1},
           {x}, experts.n_used, "ffn_gate_inp");
  RoutedExperts op{.gate = {},
                   .up = {},
                   .down = {},
                   .n_expert = experts.n_expert.u32(),
                   .n_used = experts.n_used.u32(),
                   .activation = GluActivation::silu};
  if (file_.find(tensor_name("ffn_gate_up_exps")) != nullptr) {
    op.gate = expert_matrix(tensor_name("ffn_gate_up_exps"), width, 2 * n_ff, experts.n_expert);
    op.gate.rows = op.gate.block = op.gate.stride = n_ff.value;
    op.up = op.gate;
    op.up.offset = n_ff.value;
  } else {
    op.gate = expert_matrix(tensor_name("ffn_gate_exps"), width, n_ff, experts.n_expert);
    op.up = expert_matrix(tensor_name("ffn_up_exps"), width, n_ff, experts.n_expert);
  }
  op.down = expert_matrix(tensor_name("ffn_down_exps"), n_ff, width, experts.n_expert);
  return emit(std::move(op), {x, routing}, width, "ffn_exps");
}

ValueId GraphBuilder::add_gated(ValueId routed, ValueId shared, ValueId x,
                                std::string_view gate_name) {
  return emit(AddGated{.gate = vector(tensor_name(gate_name), {widths_[x]})}, {routed, shared, x},
              widths_[x], gate_name);
}

ValueId GraphBuilder::add(ValueId a, ValueId b, std::string_view name) {
  return emit(Add{}, {a, b}, widths_[a], name);
}

ValueId GraphBuilder::causal_conv(ValueId x, std::string_view name, const Size& kernel) {
  return emit(CausalConv{.weight = vector(tensor_name(name), {kernel, widths_[x]}),
                         .channels = widths_[x].u32(),
                         .kernel = kernel.u32()},
              {x}, widths_[x], name);
}

ValueId GraphBuilder::delta_rule(ValueId qkv, ValueId alpha, ValueId beta,
                                 const DeltaShape& shape) {
  const std::string block = fmt::format("blk.{}.", layer_);
  return emit(DeltaRule{.ssm_a = vector(block + "ssm_a", {shape.n_v_heads}),
                        .dt_bias = vector(block + "ssm_dt.bias", {shape.n_v_heads}),
                        .n_k_heads = shape.n_k_heads.u32(),
                        .n_v_heads = shape.n_v_heads.u32(),
                        .dim = shape.head_length.u32(),
                        .head_map = shape.head_map,
                        .eps = eps_},
              {qkv, alpha, beta}, shape.n_v_heads * shape.head_length, "delta_rule");
}

ModelGraph GraphBuilder::finish(ValueId x, HeadOptions options) {
  layer_ = -1;
  layer_kind_.clear();
  x = emit(SelectOutputs{}, {x}, n_embd_, "select_outputs");
  x = rms_norm(x, "output_norm");
  if (options.output_required || file_.find("output.weight") != nullptr) {
    x = linear(x, "output", vocabulary_);
  } else {
    x = emit(Linear{.weight = matrix("token_embd.weight", n_embd_, vocabulary_),
                    .bias = optional_vector("output.bias", vocabulary_)},
             {x}, vocabulary_, "output");
  }
  if (options.softcap != 0) {
    x = emit(Softcap{.cap = static_cast<float>(options.softcap)}, {x}, vocabulary_,
             "logit_softcap");
  }
  graph_.logits = x;
  account_for_tensors();
  return std::move(graph_);
}

}  // namespace quern
