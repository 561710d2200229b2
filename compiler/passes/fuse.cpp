#include "compiler/passes/fuse.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::passes {

Program fuse(const ModelGraph& graph) {
  return Fuser(graph).run();
}

Fuser::Fuser(const ModelGraph& graph)
    : graph_(graph),
      producer_(graph.values.size(), no_node),
      uses_(graph.values.size()),
      roles_(graph.nodes.size(), Role::alone),
      places_(graph.values.size()) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId input : graph.nodes[i].inputs) uses_[input].push_back(i);
    producer_[graph.nodes[i].output] = i;
  }
}

Program Fuser::run() {
  claim();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (roles_[i] != Role::absorbed) lower(i);
  }
  decisions_.append_to(program_.decisions);
  return std::move(program_);
}

void Fuser::claim() {
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (op_of<Attention>(i) != nullptr) claim_attention(i);
  }
  claim_row_parts();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (op_of<Glu>(i) != nullptr) claim_glu(i);
    if (op_of<Softcap>(i) != nullptr) claim_softcap(i);
    if (op_of<RoutedExperts>(i) != nullptr) claim_experts_residual(i);
  }
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (op_of<Add>(i) != nullptr && roles_[i] == Role::alone) claim_add(i);
  }
  form_groups();
}

void Fuser::claim_glu(size_t node) {
  const auto& inputs = node_at(node).inputs;
  const size_t gate = sole_producer<Linear>(inputs[0]);
  const size_t up = sole_producer<Linear>(inputs[1]);
  if (gate == no_node || up == no_node || gate == up ||
      node_at(gate).inputs[0] != node_at(up).inputs[0]) {
    no_kernel(node, "its gate and up are not two projections of one value");
  }
  roles_[gate] = roles_[up] = Role::absorbed;
}

void Fuser::claim_softcap(size_t node) {
  const size_t linear = sole_producer<Linear>(node_at(node).inputs[0]);
  if (linear == no_node) no_kernel(node, "its input is not a projection");
  roles_[linear] = Role::absorbed;
}

void Fuser::claim_add(size_t node) {
  const auto& inputs = node_at(node).inputs;
  if (inputs[0] == inputs[1]) return;
  // The second operand is the branch, the first the residual stream, as families write it; where
  // both would do, the later one goes into the kernel.
  for (const size_t operand : {1u, 0u}) {
    size_t branch = sole_producer<Linear>(inputs[operand]);
    if (branch == no_node) branch = sole_producer<RmsNorm>(inputs[operand]);
    if (branch == no_node) continue;
    add_operand_[node] = branch;
    roles_[branch] = Role::absorbed;
    return;
  }
}

bool Fuser::reads_rows_in_place(size_t reader, ValueId value) const {
  const auto& inputs = node_at(reader).inputs;
  const auto at = [&](size_t i) { return i < inputs.size() && inputs[i] == value; };
  if (op_of<CausalConv>(reader) != nullptr) return true;
  if (op_of<DeltaRule>(reader) != nullptr) return !at(0);
  if (op_of<GatedRmsNorm>(reader) != nullptr) return !at(0);
  if (op_of<Attention>(reader) != nullptr) return !at(0) && !at(1) && !at(2);
  return false;
}

void Fuser::claim_row_parts() {
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (op_of<Linear>(i) == nullptr || roles_[i] != Role::alone) continue;
    const ValueId value = node_at(i).output;
    if (value != graph_.logits && !uses_[value].empty() &&
        std::ranges::all_of(uses_[value],
                            [&](size_t reader) { return reads_rows_in_place(reader, value); })) {
      roles_[i] = Role::row_part;
    }
  }
}

void Fuser::form_groups() {
  std::map<ValueId, size_t> open;  // Input -> first projection of the GEMM that still has room.
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (roles_[i] != Role::row_part) continue;
    const ValueId input = node_at(i).inputs[0];
    const auto found = open.find(input);
    if (found == open.end() || groups_[found->second].size() == spec::GemmSpec::max_segments) {
      open[input] = i;
      groups_[i] = {i};
    } else {
      groups_[found->second].push_back(i);
    }
  }
}

void Fuser::lower(size_t node) {
  if (roles_[node] == Role::row_part) {
    const auto group = groups_.find(node);
    if (group != groups_.end()) lower_group(group->second);
    return;
  }
  if (op_of<Embed>(node) != nullptr) return lower_embed(node);
  if (op_of<RmsNorm>(node) != nullptr) return lower_norm(node, no_value, node);
  if (op_of<GatedRmsNorm>(node) != nullptr) return lower_gated_norm(node);
  if (op_of<Linear>(node) != nullptr) return lower_linear(node);
  if (op_of<Attention>(node) != nullptr) return lower_attention(node);
  if (op_of<Glu>(node) != nullptr) return lower_glu(node);
  if (op_of<Add>(node) != nullptr) return lower_add(node);
  if (op_of<Route>(node) != nullptr) return lower_route(node);
  if (op_of<RoutedExperts>(node) != nullptr) return lower_experts(node);
  if (op_of<AddGated>(node) != nullptr) return lower_add_gated(node);
  if (op_of<CausalConv>(node) != nullptr) return lower_conv(node);
  if (op_of<DeltaRule>(node) != nullptr) return lower_delta(node);
  if (op_of<SelectOutputs>(node) != nullptr) return lower_select(node);
  if (op_of<Softcap>(node) != nullptr) return lower_softcap(node);
  no_kernel(node, "RoPE runs only between the projections and attention");
}

void Fuser::lower_embed(size_t node) {
  const Embed& embed = *op_of<Embed>(node);
  const BufferRef table = raw(embed.table);
  launch(spec::EmbedSpec{.type = to_spec(embed.table.type),
                         .width = width(node_at(node).output),
                         .scale = embed.scale},
         {{BufferKind::tokens, 0}, table, make_output(node_at(node).output)}, {node},
         "rows of the table are decoded as the file has them");
}

void Fuser::lower_norm(size_t node, ValueId residual, size_t result) {
  const RmsNorm& norm = *op_of<RmsNorm>(node);
  const BufferRef x = dense(node_at(node).inputs[0], node);
  const BufferRef w = vector(norm.weight);
  const bool adds = residual != no_value;
  const BufferRef r = adds ? dense(residual, result) : BufferRef{};
  const BufferRef y = make_output(node_at(result).output);
  std::vector<size_t> nodes = {node};
  if (adds) nodes.push_back(result);
  launch(spec::NormSpec{.width = width(node_at(node).output),
                        .group = norm.group,
                        .eps = norm.eps,
                        .residual = adds ? 1u : 0u},
         {x, w, y, r, {}}, nodes,
         adds ? "the norm's rows are added to the residual as they are made"
              : "it needs a whole row, and no tile of the kernel before it holds one");
}

void Fuser::lower_gated_norm(size_t node) {
  const GatedRmsNorm& norm = *op_of<GatedRmsNorm>(node);
  const BufferRef x = dense(node_at(node).inputs[0], node);
  const BufferRef w = vector(norm.weight);
  const Place& z = place(node_at(node).inputs[1], node);
  const BufferRef y = make_output(node_at(node).output);
  launch(spec::NormSpec{.width = width(node_at(node).output),
                        .group = norm.group,
                        .eps = norm.eps,
                        .gate = 1,
                        .z_row_width = z.row_width,
                        .z_offset = z.offset},
         {x, w, y, {}, z.buffer}, {node}, "the gate is read from the fused projection's rows");
}

void Fuser::lower_add(size_t node) {
  const auto& inputs = node_at(node).inputs;
  const auto branch = add_operand_.find(node);
  if (branch == add_operand_.end()) {
    const BufferRef a = dense(inputs[0], node), b = dense(inputs[1], node);
    const BufferRef y = make_output(node_at(node).output);
    return launch(spec::AddSpec{.width = width(node_at(node).output)}, {a, b, y, {}, {}}, {node},
                  "neither operand comes from a kernel that could add the other");
  }
  const ValueId made = node_at(branch->second).output;
  const ValueId residual = inputs[0] == made ? inputs[1] : inputs[0];
  if (op_of<RmsNorm>(branch->second) != nullptr) {
    return lower_norm(branch->second, residual, node);
  }
  const BufferRef y = make_output(node_at(node).output);
  emit_gemm({.linears = {branch->second},
             .epilogue = spec::Epilogue::residual,
             .residual = residual,
             .absorbed = {node},
             .reason = "the residual is added where the sums are stored"},
            y, node);
}

void Fuser::lower_add_gated(size_t node) {
  const AddGated& add = *op_of<AddGated>(node);
  const auto& inputs = node_at(node).inputs;
  const BufferRef a = dense(inputs[0], node), b = dense(inputs[1], node);
  const BufferRef x = dense(inputs[2], node);
  const BufferRef g = vector(add.gate);
  const std::vector<size_t> nodes = with_sum(node);
  const BufferRef y = make_output(node_at(nodes.back()).output);
  launch(spec::AddSpec{.width = width(node_at(node).output), .gate_width = width(inputs[2])},
         {a, b, y, x, g}, nodes, "the shared expert is added last, times its gate");
}

void Fuser::lower_select(size_t node) {
  const BufferRef x = dense(node_at(node).inputs[0], node);
  const BufferRef y = make_output(node_at(node).output);
  launch(spec::GatherSpec{.width = width(node_at(node).output)}, {x, {BufferKind::outputs, 0}, y},
         {node}, "only rows whose logits are asked for go on");
}

void Fuser::lower_conv(size_t node) {
  const CausalConv& conv = *op_of<CausalConv>(node);
  const Place& u = place(node_at(node).inputs[0], node);
  const BufferRef w = vector(conv.weight);
  const BufferRef y = make_output(node_at(node).output);
  const uint64_t taps_kept = conv.kernel == 0 ? 0 : conv.kernel - 1;
  const BufferRef state =
      make_state(StateKind::conv, node_at(node).layer, taps_kept * conv.channels * sizeof(float));
  launch(spec::ConvSpec{.channels = conv.channels,
                        .kernel = conv.kernel,
                        .row_width = u.row_width,
                        .offset = u.offset},
         {u.buffer, w, y, state}, {node}, "its input is read from the fused projection's rows");
}

void Fuser::lower_delta(size_t node) {
  const DeltaRule& delta = *op_of<DeltaRule>(node);
  const auto& inputs = node_at(node).inputs;
  const BufferRef x = dense(inputs[0], node);
  const Place& a = place(inputs[1], node);
  const Place& b = place(inputs[2], node);
  if (a.buffer.kind != b.buffer.kind || a.buffer.index != b.buffer.index) {
    no_kernel(node, "alpha and beta are not projections of one value");
  }
  const BufferRef ssm_a = vector(delta.ssm_a), dt_bias = vector(delta.dt_bias);
  const BufferRef o = make_output(node_at(node).output);
  const uint64_t state_values = uint64_t{delta.n_v_heads} * delta.dim * delta.dim;
  const BufferRef state =
      make_state(StateKind::recurrent, node_at(node).layer, state_values * sizeof(float));
  launch(spec::DeltaSpec{.n_k_heads = delta.n_k_heads,
                         .n_v_heads = delta.n_v_heads,
                         .dim = delta.dim,
                         .head_map = delta.head_map == DeltaHeadMap::tiled ? spec::HeadMap::tiled
                                                                           : spec::HeadMap::grouped,
                         .eps = delta.eps,
                         .ab_row_width = a.row_width,
                         .a_offset = a.offset,
                         .b_offset = b.offset},
         {x, a.buffer, ssm_a, dt_bias, o, state}, {node},
         "the sequential scan: exact, and the same for any chunk");
}

// ---- shared by all operations ----

const Place& Fuser::place(ValueId value, size_t reader) const {
  if (places_[value].buffer.kind == BufferKind::none) {
    no_kernel(reader, "an input of it has not been computed");
  }
  return places_[value];
}

BufferRef Fuser::dense(ValueId value, size_t reader) const {
  const Place& where = place(value, reader);
  if (where.offset != 0 || where.row_width != width(value)) {
    no_kernel(reader, "an input of it lies inside wider rows");
  }
  return where.buffer;
}

BufferRef Fuser::make_output(ValueId value) {
  BufferRef buffer{BufferKind::logits, 0};
  if (value != graph_.logits) {
    buffer = make_buffer(node_at(producer_[value]).name, uint64_t{width(value)} * sizeof(float), 0,
                         graph_.values[value].selected);
  }
  places_[value] = Place{buffer, width(value), 0};
  return buffer;
}

BufferRef Fuser::make_buffer(std::string name, uint64_t bytes_per_row, uint64_t fixed_bytes,
                             bool selected) {
  program_.activations.push_back({.name = std::move(name),
                                  .bytes_per_row = bytes_per_row,
                                  .fixed_bytes = fixed_bytes,
                                  .selected = selected});
  return {BufferKind::activation, static_cast<uint32_t>(program_.activations.size() - 1)};
}

BufferRef Fuser::make_state(StateKind kind, int32_t layer, uint64_t bytes) {
  program_.states.push_back({.kind = kind, .layer = layer, .bytes = bytes});
  return {BufferKind::state, static_cast<uint32_t>(program_.states.size() - 1)};
}

BufferRef Fuser::packed(const WeightSlice& slice) {
  return weight(WeightForm::packed, slice);
}

BufferRef Fuser::raw(const WeightSlice& slice) {
  return weight(WeightForm::raw, slice);
}

BufferRef Fuser::vector(const VectorRef& ref) {
  if (!ref.present()) return {};
  WeightSlice slice;
  slice.tensor = ref.tensor;
  slice.rows = ref.size;
  slice.offset = ref.offset;
  return weight(WeightForm::vector, slice);
}

BufferRef Fuser::weight(WeightForm form, const WeightSlice& slice) {
  const std::string key =
      fmt::format("{} {} {} {} {} {} {}", static_cast<int>(form), slice.rows, slice.experts,
                  slice.offset, slice.block, slice.stride, slice.tensor);
  const auto [entry, added] =
      weight_index_.try_emplace(key, static_cast<uint32_t>(program_.weights.size()));
  if (added) {
    WeightBinding& binding = program_.weights.emplace_back();
    binding.form = form;
    binding.slice = slice;
  }
  return {BufferKind::weight, entry->second};
}

std::string Fuser::names_of(const std::vector<size_t>& nodes) const {
  std::string names;
  for (const size_t node : nodes) {
    if (!names.empty()) names += " + ";
    names += short_name(node_at(node).name);
  }
  return names;
}

void Fuser::launch(const spec::AnySpec& spec, std::vector<BufferRef> buffers,
                   const std::vector<size_t>& nodes, std::string_view reason) {
  launch_named(names_of(nodes), spec, std::move(buffers), nodes.back(), reason);
}

void Fuser::launch_named(std::string names, const spec::AnySpec& spec,
                         std::vector<BufferRef> buffers, size_t last, std::string_view reason) {
  const Node& node = node_at(last);
  program_.launches.push_back(
      {.spec = spec,
       .buffers = std::move(buffers),
       .rows = graph_.values[node.output].selected ? StepRows::outputs : StepRows::tokens,
       .layer = node.layer,
       .name = node.layer < 0 ? names : fmt::format("blk.{} {}", node.layer, names)});
  decisions_.add(node.layer, std::move(names), std::string(spec_family(spec)), std::string(reason));
}

void Fuser::no_kernel(size_t node, std::string_view reason) const {
  throw Error(ErrorKind::failed, node_at(node).name,
              fmt::format("no kernel computes it: {}", reason),
              "report the model's architecture to Quern's issue tracker");
}

}  // namespace quern::passes
