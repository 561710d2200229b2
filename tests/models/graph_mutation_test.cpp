// The fixtures tell a wrong graph from a right one: each mutation here must miss the bar by far.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "models/model.h"
#include "tests/support/fixtures.h"
#include "tests/support/graph_error.h"

namespace quern {
namespace {

/// Three times the bar of DESIGN section 9, and ten times what the right graphs show.
constexpr double lethal = 3e-4;

/// Applies `change` to every operation of one kind; says how many there were.
template <class Op, class Change>
size_t change_all(ModelGraph& graph, Change change) {
  size_t count = 0;
  for (Node& node : graph.nodes) {
    if (Op* op = std::get_if<Op>(&node.op)) {
      change(*op, node);
      ++count;
    }
  }
  return count;
}

/// Swaps the operations of two nodes of each layer, which work on the same width.
size_t swap_operations(ModelGraph& graph, const std::string& a, const std::string& b) {
  size_t count = 0;
  for (uint32_t layer = 0; layer < graph.n_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const auto first = std::ranges::find(graph.nodes, block + a, &Node::name);
    const auto second = std::ranges::find(graph.nodes, block + b, &Node::name);
    if (first == graph.nodes.end() || second == graph.nodes.end()) continue;
    std::swap(first->op, second->op);
    ++count;
  }
  return count;
}

struct Mutation {
  const char* name;
  const char* fixture;
  std::function<size_t(ModelGraph&)> apply;  ///< Says how many places it changed.
};

void PrintTo(const Mutation& mutation, std::ostream* out) {
  *out << mutation.name;
}

size_t swap_head_map(ModelGraph& graph) {
  return change_all<DeltaRule>(graph, [](DeltaRule& op, Node&) {
    op.head_map = op.head_map == DeltaHeadMap::tiled ? DeltaHeadMap::grouped : DeltaHeadMap::tiled;
  });
}

size_t norm_after_rope(ModelGraph& graph) {
  return swap_operations(graph, "attn_q_norm", "q_rope") +
         swap_operations(graph, "attn_k_norm", "k_rope");
}

size_t norm_per_head(ModelGraph& graph) {
  return change_all<RmsNorm>(graph, [](RmsNorm& op, Node& node) {
    if (node.name.ends_with("attn_q_norm") || node.name.ends_with("attn_k_norm")) op.group = 32;
  });
}

size_t flip_renormalisation(ModelGraph& graph) {
  return change_all<Route>(graph, [](Route& op, Node&) { op.renormalise = !op.renormalise; });
}

template <int by>
size_t shift_window(ModelGraph& graph) {
  return change_all<Attention>(graph, [](Attention& op, Node&) {
    if (op.window != 0) op.window = static_cast<uint32_t>(static_cast<int>(op.window) + by);
  });
}

size_t drop_output_gate(ModelGraph& graph) {
  return change_all<Attention>(graph, [](Attention&, Node& node) { node.inputs.resize(3); });
}

size_t swap_rope_pairs(ModelGraph& graph) {
  for (Rope& rope : graph.ropes) {
    rope.kind = rope.kind == RopeKind::norm ? RopeKind::neox : RopeKind::norm;
  }
  return graph.ropes.size();
}

size_t drop_mscale(ModelGraph& graph) {
  for (Rope& rope : graph.ropes) rope.mscale = 1;
  return graph.ropes.size();
}

size_t swap_inputs(ModelGraph& graph, bool glu) {
  size_t count = 0;
  for (Node& node : graph.nodes) {
    const bool chosen =
        glu ? std::holds_alternative<Glu>(node.op) : std::holds_alternative<DeltaRule>(node.op);
    if (!chosen) continue;
    std::swap(node.inputs[glu ? 0 : 1], node.inputs[glu ? 1 : 2]);
    ++count;
  }
  return count;
}

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> list = {
      {"wrong_head_map_tiled", "qwen35", swap_head_map},
      {"wrong_head_map_grouped", "qwen3next", swap_head_map},
      {"wrong_head_map_moe", "qwen35moe", swap_head_map},
      {"rope_before_qk_norm_qwen3", "qwen3", norm_after_rope},
      {"rope_before_qk_norm_qwen3moe", "qwen3moe", norm_after_rope},
      {"rope_before_qk_norm_gemma3", "gemma3", norm_after_rope},
      {"rope_before_qk_norm_olmoe", "olmoe", norm_after_rope},
      {"qk_norm_per_head_olmoe", "olmoe", norm_per_head},
      {"missing_renormalisation_qwen3moe", "qwen3moe", flip_renormalisation},
      {"missing_renormalisation_qwen3next", "qwen3next", flip_renormalisation},
      {"renormalised_olmoe", "olmoe", flip_renormalisation},
      {"one_expert_fewer", "qwen3moe",
       [](ModelGraph& graph) {
         return change_all<Route>(graph, [](Route& op, Node&) { --op.n_used; }) +
                change_all<RoutedExperts>(graph, [](RoutedExperts& op, Node&) { --op.n_used; });
       }},
      {"gate_and_up_experts_swapped", "olmoe",
       [](ModelGraph& graph) {
         return change_all<RoutedExperts>(
             graph, [](RoutedExperts& op, Node&) { std::swap(op.gate, op.up); });
       }},
      {"window_one_larger", "gemma3", shift_window<1>},
      {"window_one_smaller", "gemma3", shift_window<-1>},
      {"ropes_of_windowed_and_global_layers_swapped", "gemma3",
       [](ModelGraph& graph) {
         std::swap(graph.ropes[0], graph.ropes[1]);
         return graph.ropes.size();
       }},
      {"embedding_not_scaled", "gemma3",
       [](ModelGraph& graph) {
         return change_all<Embed>(graph, [](Embed& op, Node&) { op.scale = 1; });
       }},
      {"silu_for_gelu", "gemma3",
       [](ModelGraph& graph) {
         return change_all<Glu>(graph, [](Glu& op, Node&) { op.activation = GluActivation::silu; });
       }},
      {"post_norm_eps_of_another_model", "gemma3",
       [](ModelGraph& graph) {
         return change_all<RmsNorm>(graph, [](RmsNorm& op, Node& node) {
           if (node.name.ends_with("post_ffw_norm")) op.eps = 1e-2f;
         });
       }},
      {"output_gate_dropped_qwen35", "qwen35", drop_output_gate},
      {"output_gate_dropped_qwen3next", "qwen3next", drop_output_gate},
      {"query_and_gate_not_interleaved", "qwen35",
       [](ModelGraph& graph) {
         return change_all<Linear>(graph, [](Linear& op, Node& node) {
           const bool gate = node.name.ends_with("attn_q.gate");
           if (!gate && !node.name.ends_with("attn_q")) return;
           op.weight.offset = gate ? op.weight.rows : 0;
           op.weight.block = op.weight.stride = op.weight.rows;
         });
       }},
      {"alpha_and_beta_swapped_qwen35", "qwen35",
       [](ModelGraph& graph) { return swap_inputs(graph, false); }},
      {"alpha_and_beta_swapped_qwen3next", "qwen3next",
       [](ModelGraph& graph) { return swap_inputs(graph, false); }},
      {"ssm_ba_not_interleaved", "qwen3next",
       [](ModelGraph& graph) {
         return change_all<Linear>(graph, [](Linear& op, Node& node) {
           if (node.name.find("ssm_ba") == std::string::npos) return;
           op.weight.offset = op.weight.offset == 0 ? 0 : op.weight.rows;
           op.weight.block = op.weight.stride = op.weight.rows;
         });
       }},
      {"whole_heads_rotated", "qwen35",
       [](ModelGraph& graph) {
         Rope& rope = graph.ropes[0];
         rope.n_rot *= 2;
         const std::vector<double> copy = rope.inverse_frequency;
         rope.inverse_frequency.insert(rope.inverse_frequency.end(), copy.begin(), copy.end());
         return graph.ropes.size();
       }},
      {"l2_norm_eps_of_another_model", "qwen35",
       [](ModelGraph& graph) {
         return change_all<DeltaRule>(graph, [](DeltaRule& op, Node&) { op.eps = 1e-3f; });
       }},
      {"norm_pairs_rotated_as_neox", "llama", swap_rope_pairs},
      {"neox_pairs_rotated_as_norm", "qwen2", swap_rope_pairs},
      {"rope_freqs_dropped", "llama3",
       [](ModelGraph& graph) {
         Rope& rope = graph.ropes[0];
         for (uint32_t i = 0; i < rope.n_rot / 2; ++i) {
           rope.inverse_frequency[i] = std::pow(500000.0, -2.0 * i / rope.n_rot);
         }
         return graph.ropes.size();
       }},
      {"linear_scaling_dropped", "variants/llama-linear",
       [](ModelGraph& graph) {
         for (double& f : graph.ropes[0].inverse_frequency) f *= 4;
         return graph.ropes.size();
       }},
      {"yarn_magnitude_dropped", "variants/llama-yarn", drop_mscale},
      {"biases_dropped", "qwen2",
       [](ModelGraph& graph) {
         return change_all<Linear>(graph, [](Linear& op, Node&) { op.bias = {}; });
       }},
      {"eps_of_another_model", "qwen2",
       [](ModelGraph& graph) {
         return change_all<RmsNorm>(graph, [](RmsNorm& op, Node&) { op.eps = 1e-3f; });
       }},
      {"attention_scale_of_twice_the_width", "llama",
       [](ModelGraph& graph) {
         return change_all<Attention>(graph, [](Attention& op, Node&) { op.scale *= 0.70710678f; });
       }},
      {"attention_scale_off_by_a_thousandth", "llama",
       [](ModelGraph& graph) {
         return change_all<Attention>(graph, [](Attention& op, Node&) { op.scale *= 1.001f; });
       }},
      {"gate_and_up_swapped", "qwen3", [](ModelGraph& graph) { return swap_inputs(graph, true); }},
      {"fused_k_and_v_rows_swapped", "variants/qwen3-fused-qkv",
       [](ModelGraph& graph) { return swap_operations(graph, "attn_k", "attn_v"); }},
      {"shared_expert_gate_on_its_output", "qwen35moe",
       [](ModelGraph& graph) {
         return change_all<AddGated>(
             graph, [](AddGated&, Node& node) { node.inputs[2] = node.inputs[1]; });
       }},
  };
  return list;
}

class GraphMutation : public testing::TestWithParam<Mutation> {};

TEST_P(GraphMutation, misses_the_bar) {
  const std::string stem = std::string("fixtures/") + GetParam().fixture;
  const auto model = test::shared_file(stem + ".gguf");
  const auto golden_path = test::shared_file(stem + ".golden.gguf");
  if (!model || !golden_path) GTEST_SKIP() << test::missing_shared(stem + ".gguf");
  const gguf::File file = gguf::File::open(*model);
  ModelGraph graph = build_graph(file);
  ASSERT_GT(GetParam().apply(graph), 0u) << "changed nothing";
  const double error = test::graph_error(file, graph, test::load_golden(*golden_path));
  RecordProperty("error_over_deviation", std::to_string(error));
  EXPECT_GT(error, lethal);
}

INSTANTIATE_TEST_SUITE_P(graphs, GraphMutation, testing::ValuesIn(mutations()),
                         [](const auto& mutation) { return std::string(mutation.param.name); });

struct Fault {
  const char* name;
  const char* fixture;
  test::ReferenceFaults faults;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

class GraphFault : public testing::TestWithParam<Fault> {};

TEST_P(GraphFault, of_a_kernel_misses_the_bar) {
  const std::string stem = std::string("fixtures/") + GetParam().fixture;
  const gguf::File file = gguf::File::open(test::data_file(stem + ".gguf"));
  const test::Golden golden = test::load_golden(test::data_file(stem + ".golden.gguf"));
  EXPECT_GT(test::graph_error(file, build_graph(file), golden, GetParam().faults), lethal);
}

INSTANTIATE_TEST_SUITE_P(
    kernels, GraphFault,
    testing::Values(Fault{"raw_gate_qwen35", "qwen35", {.raw_gate = true}},
                    Fault{"raw_gate_qwen3next", "qwen3next", {.raw_gate = true}},
                    Fault{"conv_state_after_silu", "qwen35", {.convolve_past_silu = true}},
                    Fault{"conv_state_after_silu_moe", "qwen35moe", {.convolve_past_silu = true}},
                    Fault{"decay_after_update", "qwen35", {.decay_after_update = true}},
                    Fault{"decay_after_update_next", "qwen3next", {.decay_after_update = true}},
                    Fault{"read_before_update", "qwen35", {.read_before_update = true}}),
    [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace quern
