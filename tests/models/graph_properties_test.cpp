// What the graphs of the families look like.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/rope.h"
#include "tests/support/edited_model.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using test::EditedModel;
using test::f32;
using test::flags;
using test::text;
using test::u32;

EditedModel fixture(const std::string& name) {
  return EditedModel::from(test::data_file("fixtures/" + name + ".gguf"));
}

template <class Op>
std::vector<Op> operations(const ModelGraph& graph) {
  std::vector<Op> found;
  for (const Node& node : graph.nodes) {
    if (const Op* op = std::get_if<Op>(&node.op)) found.push_back(*op);
  }
  return found;
}

const Node& node_named(const ModelGraph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.nodes, name, &Node::name);
  if (found == graph.nodes.end()) throw std::runtime_error("no node " + name);
  return *found;
}

const WeightSlice& slice_of(const ModelGraph& graph, const std::string& name) {
  return std::get<Linear>(node_named(graph, name).op).weight;
}

void expect_slice(const WeightSlice& slice, const std::string& tensor, uint64_t rows,
                  uint64_t offset, uint64_t block, uint64_t stride) {
  EXPECT_EQ(slice.tensor, tensor);
  EXPECT_EQ(slice.rows, rows) << tensor;
  EXPECT_EQ(slice.offset, offset) << tensor;
  EXPECT_EQ(slice.block, block) << tensor;
  EXPECT_EQ(slice.stride, stride) << tensor;
}

class GraphProperties : public testing::TestWithParam<const char*> {};

TEST_P(GraphProperties, nodes_are_in_order_and_every_value_is_made_once) {
  const ModelGraph graph = fixture(GetParam()).graph();
  std::vector<bool> made(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) {
      ASSERT_LT(input, made.size());
      EXPECT_TRUE(made[input]) << node.name;
    }
    ASSERT_LT(node.output, made.size());
    EXPECT_FALSE(made[node.output]) << node.name;
    made[node.output] = true;
  }
  EXPECT_TRUE(std::ranges::all_of(made, std::identity{}));
  EXPECT_EQ(graph.values[graph.logits].width, graph.vocabulary);
}

TEST_P(GraphProperties, every_slice_stays_inside_its_tensor) {
  const EditedModel model = fixture(GetParam());
  const std::vector<std::byte> image = model.image();
  const gguf::File file = gguf::File::parse(image, "fixture");
  const ModelGraph graph = build_graph(file);
  const auto check = [&](const WeightSlice& slice) {
    const gguf::Tensor* tensor = file.find(slice.tensor);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->row_length(), slice.k);
    EXPECT_EQ(tensor->rows(), slice.tensor_rows * slice.experts);
    EXPECT_EQ(tensor->type, slice.type);
    const uint64_t last = slice.rows - 1;
    EXPECT_LT(slice.offset + last / slice.block * slice.stride + last % slice.block,
              slice.tensor_rows);
  };
  for (const Linear& op : operations<Linear>(graph)) check(op.weight);
  for (const Route& op : operations<Route>(graph)) check(op.weight);
  for (const RoutedExperts& op : operations<RoutedExperts>(graph)) {
    for (const WeightSlice& slice : {op.gate, op.up, op.down}) check(slice);
  }
}

TEST_P(GraphProperties, outputs_are_selected_before_the_last_norm) {
  const ModelGraph graph = fixture(GetParam()).graph();
  const auto select = std::ranges::find_if(
      graph.nodes, [](const Node& node) { return std::holds_alternative<SelectOutputs>(node.op); });
  ASSERT_NE(select, graph.nodes.end());
  EXPECT_EQ((select + 1)->name, "output_norm");
  for (auto node = graph.nodes.begin(); node != graph.nodes.end(); ++node) {
    EXPECT_EQ(graph.values[node->output].selected, node >= select) << node->name;
  }
}

TEST_P(GraphProperties, the_same_file_gives_the_same_graph) {
  const EditedModel model = fixture(GetParam());
  const ModelGraph a = model.graph();
  const ModelGraph b = model.graph();
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    EXPECT_EQ(a.nodes[i].name, b.nodes[i].name);
    EXPECT_EQ(a.nodes[i].inputs, b.nodes[i].inputs);
  }
}

INSTANTIATE_TEST_SUITE_P(families, GraphProperties,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3moe", "olmoe",
                                         "gemma3", "qwen3next", "qwen35", "qwen35moe",
                                         "variants/qwen3-fused-qkv"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace_if(
                               text, [](char c) { return c == '/' || c == '-'; }, '_');
                           return text;
                         });

TEST(graph_properties, a_llama_layer_is_fifteen_operations) {
  const ModelGraph graph = fixture("llama").graph();
  // Norm, q, k, v, two rotations, attention, output, residual; norm, gate, up, product, down,
  // residual. Around the layers: embedding; selection, norm, output.
  EXPECT_EQ(graph.nodes.size(), 1 + 2 * 15 + 3);
  EXPECT_EQ(graph.n_layers, 2u);
  EXPECT_EQ(graph.embedding_length, 128u);
  EXPECT_EQ(graph.vocabulary, 320u);
  EXPECT_EQ(graph.context_length, 512u);
}

TEST(graph_properties, a_file_without_output_is_tied_to_the_embedding) {
  const ModelGraph tied = fixture("llama3").graph();
  EXPECT_EQ(slice_of(tied, "output").tensor, "token_embd.weight");
  const ModelGraph own = fixture("llama").graph();
  EXPECT_EQ(slice_of(own, "output").tensor, "output.weight");
}

TEST(graph_properties, fused_qkv_rows_lie_in_the_order_q_k_v) {
  const ModelGraph graph = fixture("variants/qwen3-fused-qkv").graph();
  for (const std::string block : {"blk.0.", "blk.1."}) {
    const std::string tensor = block + "attn_qkv.weight";
    expect_slice(slice_of(graph, block + "attn_q"), tensor, 256, 0, 256, 256);
    expect_slice(slice_of(graph, block + "attn_k"), tensor, 128, 256, 128, 128);
    expect_slice(slice_of(graph, block + "attn_v"), tensor, 128, 384, 128, 128);
  }
}

TEST(graph_properties, gated_attention_reads_query_and_gate_head_by_head) {
  for (const char* name : {"qwen3next", "qwen35", "qwen35moe"}) {
    const ModelGraph graph = fixture(name).graph();
    expect_slice(slice_of(graph, "blk.3.attn_q"), "blk.3.attn_q.weight", 256, 0, 64, 128);
    expect_slice(slice_of(graph, "blk.3.attn_q.gate"), "blk.3.attn_q.weight", 256, 64, 64, 128);
    const Node& attention = node_named(graph, "blk.3.attention");
    ASSERT_EQ(attention.inputs.size(), 4u);
    EXPECT_EQ(attention.inputs[3], node_named(graph, "blk.3.attn_q.gate").output);
  }
}

TEST(graph_properties, beta_and_alpha_alternate_in_ssm_ba) {
  const ModelGraph graph = fixture("qwen3next").graph();
  expect_slice(slice_of(graph, "blk.0.ssm_ba.beta"), "blk.0.ssm_ba.weight", 4, 0, 2, 4);
  expect_slice(slice_of(graph, "blk.0.ssm_ba.alpha"), "blk.0.ssm_ba.weight", 4, 2, 2, 4);
  const Node& rule = node_named(graph, "blk.0.delta_rule");
  EXPECT_EQ(rule.inputs[1], node_named(graph, "blk.0.ssm_ba.alpha").output);
  EXPECT_EQ(rule.inputs[2], node_named(graph, "blk.0.ssm_ba.beta").output);
}

TEST(graph_properties, v_heads_find_their_k_heads_as_each_family_stores_them) {
  for (const auto& [name, map] : {std::pair{"qwen3next", DeltaHeadMap::grouped},
                                  {"qwen35", DeltaHeadMap::tiled},
                                  {"qwen35moe", DeltaHeadMap::tiled}}) {
    const auto rules = operations<DeltaRule>(fixture(name).graph());
    ASSERT_EQ(rules.size(), 3u);
    for (const DeltaRule& rule : rules) EXPECT_EQ(rule.head_map, map) << name;
  }
}

TEST(graph_properties, recurrent_layers_follow_the_array_or_the_interval) {
  EditedModel model = fixture("qwen35");
  const auto kinds = [](const ModelGraph& graph) {
    std::string text;
    for (const Node& node : graph.nodes) {
      if (std::holds_alternative<DeltaRule>(node.op)) text += 'r';
      if (std::holds_alternative<Attention>(node.op)) text += 'a';
    }
    return text;
  };
  EXPECT_EQ(kinds(model.graph()), "rrra");
  model.erase_key("attention.recurrent_layers");
  EXPECT_EQ(kinds(model.graph()), "rrra");
  model.erase_key("full_attention_interval");
  EXPECT_EQ(kinds(model.graph()), "rrra");
  model.set("attention.recurrent_layers", flags({1, 1, 1, 0}));
  EXPECT_EQ(kinds(model.graph()), "rrra");
}

TEST(graph_properties, qk_norm_is_per_head_but_full_width_in_olmoe) {
  for (const auto& [name, group] :
       {std::pair{"qwen3", 64u}, {"qwen3moe", 64u}, {"gemma3", 64u}, {"olmoe", 128u}}) {
    const ModelGraph graph = fixture(name).graph();
    const auto& norm = std::get<RmsNorm>(node_named(graph, "blk.0.attn_q_norm").op);
    EXPECT_EQ(norm.group, group) << name;
    EXPECT_EQ(norm.weight.size, group) << name;
  }
}

TEST(graph_properties, only_olmoe_keeps_the_routers_own_weights) {
  for (const char* name : {"qwen3moe", "olmoe", "qwen3next", "qwen35moe"}) {
    for (const Route& route : operations<Route>(fixture(name).graph())) {
      EXPECT_EQ(route.renormalise, std::string_view(name) != "olmoe") << name;
      EXPECT_EQ(route.n_expert, 8u);
      EXPECT_EQ(route.n_used, 2u);
    }
  }
}

std::vector<uint32_t> windows(const ModelGraph& graph) {
  std::vector<uint32_t> result;
  for (const Attention& op : operations<Attention>(graph)) result.push_back(op.window);
  return result;
}

TEST(graph_properties, gemma3_windows_and_ropes_follow_the_pattern) {
  EditedModel model = fixture("gemma3");
  const ModelGraph graph = model.graph();
  EXPECT_EQ(windows(graph), (std::vector<uint32_t>{16, 16, 16, 16, 16, 0}));
  for (const Node& node : graph.nodes) {
    const auto* rotation = std::get_if<ApplyRope>(&node.op);
    if (rotation == nullptr) continue;
    const double base = node.layer == 5 ? 1e6 : 1e4;
    EXPECT_NEAR(graph.ropes[rotation->rope].inverse_frequency[1], std::pow(base, -1.0 / 32), 1e-7);
  }
  model.set("attention.sliding_window_pattern", u32(2));
  EXPECT_EQ(windows(model.graph()), (std::vector<uint32_t>{16, 0, 16, 0, 16, 0}));
  model.set("attention.sliding_window_pattern", u32(1));
  EXPECT_EQ(windows(model.graph()), (std::vector<uint32_t>(6, 0)));
  model.set("attention.sliding_window_pattern", flags({0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(windows(model.graph()), (std::vector<uint32_t>{0, 16, 16, 0, 0, 16}));
}

TEST(graph_properties, gemma3_scales_caps_and_defaults) {
  EditedModel model = fixture("gemma3");
  ModelGraph graph = model.graph();
  EXPECT_FLOAT_EQ(operations<Embed>(graph)[0].scale, std::sqrt(128.0f));
  EXPECT_FLOAT_EQ(operations<Attention>(graph)[0].scale, 0.125f);
  EXPECT_TRUE(operations<Softcap>(graph).empty());
  const std::vector<double> window_frequencies = graph.ropes[1].inverse_frequency;
  model.erase_key("rope.freq_base_swa");
  model.set("final_logit_softcapping", f32(30));
  graph = model.graph();
  EXPECT_EQ(graph.ropes[1].inverse_frequency, window_frequencies);
  ASSERT_EQ(operations<Softcap>(graph).size(), 1u);
  EXPECT_EQ(graph.nodes.back().name, "logit_softcap");
  EXPECT_EQ(graph.logits, graph.nodes.back().output);
  EXPECT_FLOAT_EQ(operations<Softcap>(graph)[0].cap, 30);
}

TEST(graph_properties, gemma3_scaling_stretches_the_global_layers_alone) {
  EditedModel model = fixture("gemma3");
  const ModelGraph plain = model.graph();
  model.set("rope.scaling.type", text("linear"));
  model.set("rope.scaling.factor", f32(8));
  const ModelGraph scaled = model.graph();
  EXPECT_EQ(scaled.ropes[1].inverse_frequency, plain.ropes[1].inverse_frequency);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_DOUBLE_EQ(scaled.ropes[0].inverse_frequency[i] * 8, plain.ropes[0].inverse_frequency[i]);
  }
}

TEST(graph_properties, llama_attention_scale_is_the_files_or_the_heads) {
  EditedModel model = fixture("llama");
  EXPECT_FLOAT_EQ(operations<Attention>(model.graph())[0].scale, 1 / std::sqrt(32.0f));
  model.set("attention.scale", f32(0.25));
  EXPECT_FLOAT_EQ(operations<Attention>(model.graph())[0].scale, 0.25f);
  model.set("attention.scale", f32(0));
  EXPECT_FLOAT_EQ(operations<Attention>(model.graph())[0].scale, 1 / std::sqrt(32.0f));
}

TEST(rope, plain_frequencies_are_powers_of_the_base_to_a_float_ratio) {
  const Rope rope = make_rope(RopeKind::neox, 64, 1e6, {});
  ASSERT_EQ(rope.inverse_frequency.size(), 32u);
  for (uint32_t i = 0; i < 32; ++i) {
    const double exact = std::pow(1e6, -2.0 * i / 64);
    EXPECT_NEAR(rope.inverse_frequency[i] / exact, 1, 6e-8 * i);
  }
  EXPECT_EQ(rope.mscale, 1);
}

TEST(rope, divisors_divide_and_linear_scaling_divides_all) {
  const std::vector<float> divisors = {1, 2, 4, 8};
  const Rope plain = make_rope(RopeKind::norm, 8, 1e4, {});
  const Rope divided = make_rope(RopeKind::norm, 8, 1e4, {.factor = 4}, divisors);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(divided.inverse_frequency[i] * 4 * divisors[i], plain.inverse_frequency[i]);
  }
}

TEST(rope, yarn_keeps_fast_pairs_and_stretches_slow_ones) {
  const RopeScaling yarn = {.factor = 8, .extrapolation = 1, .original_context = 4096};
  const Rope plain = make_rope(RopeKind::neox, 128, 1e4, {});
  const Rope rope = make_rope(RopeKind::neox, 128, 1e4, yarn);
  // Pair i turns 4096 * f_i / 2 pi times in the original context: 32 times near i = 20.9, once
  // near i = 45.03.
  EXPECT_DOUBLE_EQ(rope.inverse_frequency[0], plain.inverse_frequency[0]);
  EXPECT_DOUBLE_EQ(rope.inverse_frequency[20], plain.inverse_frequency[20]);
  EXPECT_LT(rope.inverse_frequency[22], plain.inverse_frequency[22]);
  EXPECT_GT(rope.inverse_frequency[45] * 8, plain.inverse_frequency[45]);
  EXPECT_DOUBLE_EQ(rope.inverse_frequency[46] * 8, plain.inverse_frequency[46]);
  EXPECT_DOUBLE_EQ(rope.mscale, 1 + 0.1 * std::log(8));
}

}  // namespace
}  // namespace quern
