// Routed experts: router, grouping, two grouped GEMMs and the weighted sum.

#include "compiler/passes/fuse.h"
#include "compiler/spec_names.h"

namespace quern::passes {

void Fuser::claim_experts_residual(size_t node) {
  // residual + routed, or residual + (routed + gate * shared): the sum over the experts starts from
  // the residual, and a shared expert still comes last.
  ValueId sum = node_at(node).output;
  if (uses_[sum].size() != 1 || sum == graph_.logits) return;
  size_t reader = uses_[sum].front();
  size_t last = node;
  if (op_of<AddGated>(reader) != nullptr && node_at(reader).inputs[0] == sum) {
    last = reader;
    sum = node_at(reader).output;
    if (uses_[sum].size() != 1 || sum == graph_.logits) return;
    reader = uses_[sum].front();
  }
  if (op_of<Add>(reader) == nullptr || roles_[reader] != Role::alone) return;
  const auto& inputs = node_at(reader).inputs;
  const ValueId residual = inputs[0] == sum ? inputs[1] : inputs[0];
  const size_t made_by = residual == sum ? no_node : producer_[residual];
  if (made_by == no_node || made_by >= node) return;
  experts_residual_[node] = residual;
  sum_of_[last] = reader;
  roles_[reader] = Role::absorbed;
}

std::vector<size_t> Fuser::with_sum(size_t node) const {
  const auto sum = sum_of_.find(node);
  return sum == sum_of_.end() ? std::vector<size_t>{node} : std::vector<size_t>{node, sum->second};
}

void Fuser::lower_route(size_t node) {
  const Route& route = *op_of<Route>(node);
  const ValueId value = node_at(node).output;
  const std::string& name = node_at(node).name;
  const bool selected = graph_.values[value].selected;
  const uint64_t used_bytes = uint64_t{route.n_used} * sizeof(float);
  const uint64_t expert_bytes = uint64_t{route.n_expert} * sizeof(float);
  const BufferRef x = dense(node_at(node).inputs[0], node);
  Routing routing;
  routing.ids = make_buffer(name + " ids", used_bytes, 0, selected);
  routing.weights = make_buffer(name + " weights", used_bytes, 0, selected);
  const BufferRef logits = make_buffer(name + " logits", expert_bytes, 0, selected);
  launch(spec::RouterSpec{.type = to_spec(route.weight.type),
                          .k = static_cast<uint32_t>(route.weight.k),
                          .n_expert = route.n_expert,
                          .n_used = route.n_used,
                          .renormalise = route.renormalise ? 1u : 0u,
                          .weights_scale = route.weights_scale},
         {x, packed(route.weight), routing.ids, routing.weights, logits}, {node},
         "logits, softmax and the choice of experts are one kernel");
  routing.offsets = make_buffer(name + " offsets", 0, expert_bytes + sizeof(int32_t), selected);
  routing.pairs = make_buffer(name + " pairs", used_bytes, 0, selected);
  launch_named(names_of({node}) + " group",
               spec::GroupSpec{.n_expert = route.n_expert, .n_used = route.n_used},
               {routing.ids, routing.offsets, routing.pairs}, node,
               "a chunk's tokens are grouped so that each used expert is decoded once");
  routings_[value] = routing;
}

void Fuser::lower_experts(size_t node) {
  const RoutedExperts& experts = *op_of<RoutedExperts>(node);
  const auto& inputs = node_at(node).inputs;
  const auto known = routings_.find(inputs[1]);
  if (known == routings_.end()) no_kernel(node, "its second input is not a router's choice");
  const Routing& routing = known->second;
  const std::string& name = node_at(node).name;
  const bool selected = graph_.values[node_at(node).output].selected;
  const auto rows = static_cast<uint32_t>(experts.gate.rows);
  const uint64_t pair_bytes = uint64_t{experts.n_used} * sizeof(float);

  const BufferRef hidden = make_buffer(name + " hidden", pair_bytes * rows, 0, selected);
  spec::ExpertsSpec up{.n_segments = 2,
                       .k = static_cast<uint32_t>(experts.gate.k),
                       .epilogue = experts.activation == GluActivation::silu
                                       ? spec::Epilogue::swiglu
                                       : spec::Epilogue::gelu_glu,
                       .n_expert = experts.n_expert,
                       .n_used = experts.n_used,
                       .in_per_pair = 0};
  up.segments[0] = {to_spec(experts.gate.type), rows};
  up.segments[1] = {to_spec(experts.up.type), static_cast<uint32_t>(experts.up.rows)};
  launch_named(names_of({node}) + " gate + up", up,
               {dense(inputs[0], node), hidden, routing.offsets, routing.pairs,
                packed(experts.gate), packed(experts.up)},
               node, "gate and up of all used experts are one grouped GEMM");

  const auto out_rows = static_cast<uint32_t>(experts.down.rows);
  const BufferRef parts = make_buffer(name + " parts", pair_bytes * out_rows, 0, selected);
  spec::ExpertsSpec down{.n_segments = 1,
                         .k = static_cast<uint32_t>(experts.down.k),
                         .epilogue = spec::Epilogue::store,
                         .n_expert = experts.n_expert,
                         .n_used = experts.n_used,
                         .in_per_pair = 1};
  down.segments[0] = {to_spec(experts.down.type), out_rows};
  launch_named(names_of({node}) + " down", down,
               {hidden, parts, routing.offsets, routing.pairs, packed(experts.down)}, node,
               "down of all used experts is one grouped GEMM");

  const auto start = experts_residual_.find(node);
  const bool adds = start != experts_residual_.end();
  const BufferRef residual = adds ? dense(start->second, node) : BufferRef{};
  const std::vector<size_t> nodes = with_sum(node);
  launch(spec::CombineSpec{.width = out_rows, .n_used = experts.n_used, .residual = adds ? 1u : 0u},
         {parts, routing.weights, make_output(node_at(nodes.back()).output), residual}, nodes,
         adds ? "the sum in slot order starts from the residual"
              : "the experts' rows are summed in slot order");
}

}  // namespace quern::passes
