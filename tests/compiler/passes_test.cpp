// The passes, one at a time, on graphs written by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "compiler/passes/passes.h"
#include "models/error.h"
#include "tests/compiler/small_graph.h"

namespace quern {
namespace {

using passes::Program;
using test::SmallGraph;
using testing::ElementsAre;
using testing::HasSubstr;

const Target cpu_target = {"cpu", "x86-64-v3", "+avx2"};

std::vector<std::string> families(const Program& program) {
  std::vector<std::string> names;
  for (const auto& launch : program.launches) names.emplace_back(spec_family(launch.spec));
  return names;
}

const Node* find_node(const ModelGraph& graph, std::string_view name) {
  const auto found = std::ranges::find(graph.nodes, name, &Node::name);
  return found == graph.nodes.end() ? nullptr : &*found;
}

bool is_selected(const ModelGraph& graph, std::string_view name) {
  const Node* node = find_node(graph, name);
  EXPECT_NE(node, nullptr) << name;
  return node != nullptr && graph.values[node->output].selected;
}

ModelGraph sink(const ModelGraph& graph) {
  std::vector<Decision> decisions;
  return passes::select_outputs(graph, decisions);
}

Program fuse_small(const ModelGraph& graph) {
  return passes::fuse(sink(graph));
}

template <class Spec>
const Program::Launch& nth(const Program& program, size_t n) {
  for (const auto& launch : program.launches) {
    if (std::holds_alternative<Spec>(launch.spec) && n-- == 0) return launch;
  }
  throw std::out_of_range("no such launch");
}

std::string usage_error(const PlanOptions& options, const Target& target = cpu_target,
                        uint32_t context_length = 4096) {
  ModelGraph graph;
  graph.context_length = context_length;
  std::vector<Decision> decisions;
  try {
    passes::resolve(options, graph, target, decisions);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_FALSE(error.remedy().empty()) << error.what();
    return error.what();
  }
  return {};
}

// ---- resolve ----

TEST(Resolve, settles_every_open_option_and_says_why) {
  ModelGraph graph;
  graph.context_length = 131072;
  std::vector<Decision> decisions;
  const PlanOptions resolved = passes::resolve({}, graph, cpu_target, decisions);
  EXPECT_EQ(resolved.device, "cpu");
  EXPECT_EQ(resolved.context, 4096u);
  EXPECT_EQ(resolved.chunk, 512u);
  EXPECT_EQ(resolved.attention, "flash");
  EXPECT_EQ(resolved.kv, "f32");
  EXPECT_EQ(resolved.gpu_layers, 0);
  EXPECT_EQ(decisions.size(), 3u);
  for (const Decision& decision : decisions) EXPECT_FALSE(decision.reason.empty());
  // Resolving again changes nothing and has nothing to say.
  std::vector<Decision> none;
  const PlanOptions again = passes::resolve(resolved, graph, cpu_target, none);
  EXPECT_EQ(again.context, resolved.context);
  EXPECT_EQ(again.kv, resolved.kv);
  EXPECT_TRUE(none.empty());
}

TEST(Resolve, context_stops_at_the_models_own_inclusively) {
  EXPECT_EQ(usage_error({.context = 4096}), "");
  const std::string error = usage_error({.context = 4097});
  EXPECT_THAT(error, HasSubstr("4097"));
  EXPECT_THAT(error, HasSubstr("4096"));
}

TEST(Resolve, chunk_is_bounded_and_never_longer_than_the_context) {
  EXPECT_EQ(usage_error({.chunk = 16384}), "");
  EXPECT_THAT(usage_error({.chunk = 16385}), HasSubstr("--chunk 16385"));
  ModelGraph graph;
  graph.context_length = 100;
  std::vector<Decision> decisions;
  EXPECT_EQ(passes::resolve({.chunk = 512}, graph, cpu_target, decisions).chunk, 100u);
}

TEST(Resolve, refuses_what_makes_no_sense_by_name) {
  EXPECT_THAT(usage_error({.device = "cuda"}), HasSubstr("is a CPU; use --device cpu"));
  EXPECT_THAT(usage_error({.device = "cuda:1"}), HasSubstr("--device cuda:1"));
  EXPECT_THAT(usage_error({.device = "tpu"}), HasSubstr("--device tpu"));
  EXPECT_THAT(usage_error({}, {"tpu", "v5", ""}), HasSubstr("no back end compiles for"));
  EXPECT_THAT(usage_error({.attention = "paged"}), HasSubstr("auto, flash or wave"));
  EXPECT_THAT(usage_error({.kv = "q4_0"}), HasSubstr("f16, bf16, q8_0 or f32"));
  EXPECT_THAT(usage_error({.gpu_layers = 3}), HasSubstr("--gpu-layers 3"));
  EXPECT_THAT(usage_error({.gpu_layers = -2}), HasSubstr("--gpu-layers -2"));
  EXPECT_EQ(usage_error({.gpu_layers = 0}), "");
  for (const char* kv : {"auto", "f16", "bf16", "q8_0", "f32"})
    EXPECT_EQ(usage_error({.kv = kv}), "");
  for (const char* path : {"auto", "flash", "wave"})
    EXPECT_EQ(usage_error({.attention = path}), "");
}

// ---- select ----

TEST(Select, sinks_through_the_last_feed_forward_and_output_projection_but_not_through_attention) {
  SmallGraph g;
  ValueId x = g.dense_layer(g.dense_layer(g.embed(), 0), 1);
  const ModelGraph graph = sink(g.finish(x));
  for (const char* name : {"blk.1.o", "blk.1.attn_res", "blk.1.ffn_norm", "blk.1.gate", "blk.1.up",
                           "blk.1.act", "blk.1.down", "blk.1.ffn_res", "output_norm", "output"}) {
    EXPECT_TRUE(is_selected(graph, name)) << name;
  }
  for (const char* name : {"embed", "blk.0.o", "blk.0.ffn_res", "blk.1.attn_norm", "blk.1.q",
                           "blk.1.q_rope", "blk.1.k", "blk.1.v", "blk.1.attention"}) {
    EXPECT_FALSE(is_selected(graph, name)) << name;
  }
  std::vector<std::string> gathered;
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<SelectOutputs>(node.op)) gathered.push_back(node.name);
  }
  EXPECT_THAT(gathered, ElementsAre("blk.1.attention rows", "blk.0.ffn_res rows"));
}

TEST(Select, every_input_of_a_selected_node_is_selected_and_made_before_it) {
  SmallGraph g;
  const ModelGraph graph = sink(g.finish(g.dense_layer(g.embed(), 0)));
  std::vector<bool> made(graph.values.size());
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) {
      EXPECT_TRUE(made[input]) << node.name;
      if (!std::holds_alternative<SelectOutputs>(node.op)) {
        EXPECT_EQ(graph.values[input].selected, graph.values[node.output].selected) << node.name;
      }
    }
    made[node.output] = true;
  }
  EXPECT_TRUE(graph.values[graph.logits].selected);
}

TEST(Select, keeps_all_rows_of_what_writes_state) {
  SmallGraph g;
  ValueId x = g.embed();
  g.layer(0);
  const ValueId u = g.linear(x, "u", 32);
  const ValueId conv = g.add(CausalConv{g.vector("w", 128), 32, 4}, {u}, 32, "conv");
  const ValueId out = g.sum(x, g.linear(conv, "out", SmallGraph::n_embd), "res");
  const ModelGraph graph = sink(g.finish(out));
  EXPECT_FALSE(is_selected(graph, "blk.0.u"));
  EXPECT_FALSE(is_selected(graph, "blk.0.conv"));
  EXPECT_TRUE(is_selected(graph, "blk.0.out"));
}

TEST(Select, refuses_a_graph_that_never_selects) {
  SmallGraph g;
  g.graph().logits = g.linear(g.embed(), "output", SmallGraph::vocabulary);
  EXPECT_THROW(sink(g.graph()), Error);
}

// ---- fuse ----

TEST(Fuse, a_dense_layer_is_eight_launches) {
  SmallGraph g;
  ValueId x = g.dense_layer(g.dense_layer(g.embed(), 0), 1);
  const Program program = fuse_small(g.finish(x));
  EXPECT_THAT(families(program),
              ElementsAre("embed",  //
                          "norm", "gemm", "qkv_post", "attention", "gemm", "norm", "gemm", "gemm",
                          "norm", "gemm", "qkv_post", "attention", "gather", "gather", "gemm",
                          "norm", "gemm", "gemm", "norm", "gemm"));
  const auto& qkv = std::get<spec::GemmSpec>(nth<spec::GemmSpec>(program, 0).spec);
  EXPECT_EQ(qkv.n_segments, 3u);
  EXPECT_EQ(qkv.segments[0].rows, 64u);
  EXPECT_EQ(qkv.segments[1].rows, 32u);
  const auto& post = std::get<spec::QkvPostSpec>(nth<spec::QkvPostSpec>(program, 0).spec);
  EXPECT_EQ(post.row_width, 128u);
  EXPECT_EQ(post.k_offset, 64u);
  EXPECT_EQ(post.v_offset, 96u);
  EXPECT_EQ(std::get<spec::GemmSpec>(nth<spec::GemmSpec>(program, 1).spec).epilogue,
            spec::Epilogue::residual);
  EXPECT_EQ(std::get<spec::GemmSpec>(nth<spec::GemmSpec>(program, 2).spec).epilogue,
            spec::Epilogue::swiglu);
}

TEST(Fuse, the_output_gate_shares_the_gemm_of_query_key_and_value) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId q = g.linear(x, "q", 64), gate = g.linear(x, "q.gate", 64);
  const ValueId k = g.linear(x, "k", 32), v = g.linear(x, "v", 32);
  const ValueId out = g.attend(q, k, v, {gate});
  const Program program = fuse_small(g.finish(g.linear(out, "o", SmallGraph::n_embd)));
  const auto& gemm = std::get<spec::GemmSpec>(nth<spec::GemmSpec>(program, 0).spec);
  EXPECT_EQ(gemm.n_segments, 4u);
  const auto& attention = std::get<spec::AttentionSpec>(nth<spec::AttentionSpec>(program, 0).spec);
  EXPECT_EQ(attention.gate, 1u);
  EXPECT_EQ(attention.gate_row_width, 192u);
  EXPECT_EQ(attention.gate_offset, 64u);
  EXPECT_EQ(nth<spec::QkvPostSpec>(program, 0).buffers[1].kind, BufferKind::none);
}

TEST(Fuse, tells_per_head_norms_from_full_width_ones) {
  for (const bool full : {false, true}) {
    SmallGraph g;
    const ValueId x = g.embed();
    g.layer(0);
    const ValueId q = g.rope(g.norm(g.linear(x, "q", 64), "qn", full ? 64 : 32), "q_rope");
    const ValueId k = g.rope(g.norm(g.linear(x, "k", 32), "kn", 32), "k_rope");
    const ValueId out = g.attend(q, k, g.linear(x, "v", 32));
    const Program program = fuse_small(g.finish(g.linear(out, "o", SmallGraph::n_embd)));
    EXPECT_EQ(std::get<spec::QkvPostSpec>(nth<spec::QkvPostSpec>(program, 0).spec).qk_norm,
              full ? spec::QkNorm::full_width : spec::QkNorm::per_head);
  }
}

TEST(Fuse, refuses_rope_before_norm_since_the_kernel_norms_first) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId q = g.norm(g.rope(g.linear(x, "q", 64), "q_rope"), "qn", 32);
  const ValueId k = g.norm(g.rope(g.linear(x, "k", 32), "k_rope"), "kn", 32);
  const ValueId out = g.attend(q, k, g.linear(x, "v", 32));
  const ModelGraph graph = g.finish(g.linear(out, "o", SmallGraph::n_embd));
  try {
    fuse_small(graph);
    FAIL() << "a RoPE before the norm was taken for one after it";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("blk.0.attention"));
  }
}

TEST(Fuse, a_projection_with_two_readers_stays_whole) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId y = g.linear(x, "y", SmallGraph::n_embd);
  const ValueId a = g.sum(x, y, "a");
  const ValueId b = g.sum(a, y, "b");
  const Program program = fuse_small(g.finish(b));
  // Nothing needs the other rows after the embedding, so that comes down to one gather first.
  EXPECT_THAT(families(program),
              ElementsAre("embed", "gather", "gemm", "add", "add", "norm", "gemm"));
}

TEST(Fuse, sandwich_norm_adds_the_residual_itself) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId out = g.linear(g.attention_block(g.norm(x, "n")), "o", SmallGraph::n_embd);
  const Program program = fuse_small(g.finish(g.sum(x, g.norm(out, "post"), "res")));
  const auto& launch = nth<spec::NormSpec>(program, 1);
  EXPECT_EQ(std::get<spec::NormSpec>(launch.spec).residual, 1u);
  EXPECT_EQ(launch.buffers[3].kind, BufferKind::activation);
}

TEST(Fuse, biases_go_into_their_segments) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId q = g.linear(x, "q", 64, true), k = g.linear(x, "k", 32),
                v = g.linear(x, "v", 32, true);
  const Program program =
      fuse_small(g.finish(g.linear(g.attend(q, k, v), "o", SmallGraph::n_embd)));
  const auto& launch = nth<spec::GemmSpec>(program, 0);
  EXPECT_EQ(std::get<spec::GemmSpec>(launch.spec).bias, 0b101u);
  ASSERT_EQ(launch.buffers.size(), 9u);
  EXPECT_EQ(launch.buffers[6].kind, BufferKind::weight);
  EXPECT_EQ(launch.buffers[7].kind, BufferKind::none);
  EXPECT_EQ(launch.buffers[8].kind, BufferKind::weight);
}

TEST(Fuse, the_delta_rule_reads_one_fused_projection) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  constexpr uint32_t dim = 8, heads = 2, channels = 3 * heads * dim;
  const ValueId u = g.linear(x, "u", channels), z = g.linear(x, "z", heads * dim);
  const ValueId a = g.linear(x, "a", heads), b = g.linear(x, "b", heads);
  const ValueId c =
      g.add(CausalConv{g.vector("w", channels * 4), channels, 4}, {u}, channels, "conv");
  const ValueId o = g.add(DeltaRule{g.vector("ssm_a", heads), g.vector("dt", heads), heads, heads,
                                    dim, DeltaHeadMap::tiled, 1e-6f},
                          {c, a, b}, heads * dim, "delta");
  const ValueId n =
      g.add(GatedRmsNorm{g.vector("ssm_norm", dim), dim, 1e-6f}, {o, z}, heads * dim, "ssm_norm");
  const Program program =
      fuse_small(g.finish(g.sum(x, g.linear(n, "out", SmallGraph::n_embd), "res")));
  EXPECT_THAT(families(program), ElementsAre("embed", "gemm", "conv", "delta", "norm", "gather",
                                             "gather", "gemm", "norm", "gemm"));
  const auto& delta = std::get<spec::DeltaSpec>(nth<spec::DeltaSpec>(program, 0).spec);
  EXPECT_EQ(delta.ab_row_width, channels + heads * dim + 2 * heads);
  EXPECT_EQ(delta.a_offset, channels + heads * dim);
  EXPECT_EQ(delta.b_offset, channels + heads * dim + heads);
  const auto& norm = std::get<spec::NormSpec>(nth<spec::NormSpec>(program, 0).spec);
  EXPECT_EQ(norm.gate, 1u);
  EXPECT_EQ(norm.z_offset, channels);
  EXPECT_EQ(norm.z_row_width, delta.ab_row_width);
  EXPECT_EQ(program.states[0].bytes, 3 * channels * sizeof(float));
  EXPECT_EQ(program.states[1].bytes, heads * dim * dim * sizeof(float));
}

ValueId experts(SmallGraph& g, ValueId n) {
  constexpr uint32_t n_expert = 4, n_used = 2, n_ff = 32;
  const uint32_t width = SmallGraph::n_embd;
  const ValueId route = g.add(Route{g.matrix("router", n_expert, width), n_expert, n_used, true},
                              {n}, n_used, "router");
  RoutedExperts op{g.matrix("gate_exps", n_ff, width), g.matrix("up_exps", n_ff, width),
                   g.matrix("down_exps", width, n_ff), n_expert, n_used};
  for (WeightSlice* slice : {&op.gate, &op.up, &op.down}) slice->experts = n_expert;
  return g.add(op, {n, route}, width, "experts");
}

TEST(Fuse, experts_are_five_launches_and_their_sum_starts_from_the_residual) {
  SmallGraph g;
  const ValueId x = g.dense_layer(g.embed(), 0);
  g.layer(1);
  const ValueId y = g.sum(x, experts(g, g.norm(x, "n")), "res");
  const Program program = fuse_small(g.finish(y));
  const auto& combine = nth<spec::CombineSpec>(program, 0);
  EXPECT_EQ(std::get<spec::CombineSpec>(combine.spec).residual, 1u);
  EXPECT_EQ(combine.buffers[3].kind, BufferKind::activation);
  EXPECT_EQ(combine.rows, StepRows::outputs);
  const auto names = families(program);
  EXPECT_EQ(std::ranges::count(names, "add"), 0);
  EXPECT_EQ(std::ranges::count(names, "experts"), 2);
  EXPECT_EQ(std::ranges::count(names, "group"), 1);
  const auto& down = std::get<spec::ExpertsSpec>(nth<spec::ExpertsSpec>(program, 1).spec);
  EXPECT_EQ(down.in_per_pair, 1u);
  EXPECT_EQ(down.k, 32u);
}

TEST(Fuse, a_shared_expert_comes_last_on_top_of_residual_and_experts) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId n = g.norm(x, "n");
  const ValueId routed = experts(g, n);
  const ValueId shared = g.feed_forward(n);
  const ValueId both = g.add(AddGated{g.vector("shared_gate", SmallGraph::n_embd)},
                             {routed, shared, n}, SmallGraph::n_embd, "shared_sum");
  const Program program = fuse_small(g.finish(g.sum(x, both, "res")));
  const auto& combine = nth<spec::CombineSpec>(program, 0);
  const auto& add = nth<spec::AddSpec>(program, 0);
  EXPECT_EQ(std::get<spec::CombineSpec>(combine.spec).residual, 1u);
  EXPECT_EQ(std::get<spec::AddSpec>(add.spec).gate_width, SmallGraph::n_embd);
  EXPECT_EQ(add.buffers[0].index, combine.buffers[2].index);
  const auto names = families(program);
  EXPECT_EQ(std::ranges::count(names, "add"), 1);
}

TEST(Fuse, the_soft_cap_is_part_of_the_head) {
  SmallGraph g;
  const ValueId n = g.norm(g.select(g.dense_layer(g.embed(), 0)), "output_norm");
  const ValueId raw = g.linear(n, "output", SmallGraph::vocabulary);
  g.graph().logits = g.add(Softcap{30}, {raw}, SmallGraph::vocabulary, "softcap", true);
  const Program program = fuse_small(g.graph());
  const auto& head = program.launches.back();
  EXPECT_EQ(std::get<spec::GemmSpec>(head.spec).softcap, 30.0f);
  EXPECT_EQ(head.buffers[1].kind, BufferKind::logits);
}

TEST(Fuse, a_gate_without_its_pair_is_refused_by_name) {
  SmallGraph g;
  const ValueId x = g.embed();
  g.layer(0);
  const ValueId gate = g.linear(x, "gate", 64), up = g.linear(g.norm(x, "n"), "up", 64);
  const ModelGraph graph = g.finish(g.add(Glu{}, {gate, up}, 64, "act"));
  try {
    fuse_small(graph);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("blk.0.act"));
  }
}

TEST(Fuse, every_launch_has_a_decision_and_layers_are_told_together) {
  SmallGraph g;
  ValueId x = g.embed();
  for (int32_t layer = 0; layer < 5; ++layer) x = g.dense_layer(x, layer);
  const Program program = fuse_small(g.finish(x));
  const auto has = [&](std::string_view subject) {
    return std::ranges::count(program.decisions, subject, &Decision::subject);
  };
  EXPECT_EQ(has("blk.0-4 q + k + v"), 1);
  EXPECT_EQ(has("blk.0-4 o + attn_res"), 1);
  EXPECT_EQ(has("output"), 1);
}

TEST(LayerDecisions, layers_are_listed_as_ranges) {
  passes::LayerDecisions list;
  for (const int32_t layer : {0, 1, 2, 5, 7, 8}) list.add(layer, "x", "y", "z");
  list.add(3, "x", "other", "z");
  list.add(-1, "x", "y", "z");
  std::vector<Decision> decisions;
  list.append_to(decisions);
  ASSERT_EQ(decisions.size(), 3u);
  EXPECT_EQ(decisions[0].subject, "blk.0-2,5,7-8 x");
  EXPECT_EQ(decisions[1].subject, "blk.3 x");
  EXPECT_EQ(decisions[2].subject, "x");
}

// ---- choose and lay out ----

TEST(Choose, sets_path_and_cache_type_everywhere) {
  SmallGraph g;
  Program program = fuse_small(g.finish(g.dense_layer(g.embed(), 0)));
  passes::choose(program, {.attention = "wave", .kv = "q8_0"}, cpu_target);
  const auto& attention = std::get<spec::AttentionSpec>(nth<spec::AttentionSpec>(program, 0).spec);
  EXPECT_EQ(attention.path, spec::AttentionPath::wave);
  EXPECT_EQ(attention.kv, spec::KvType::q8_0);
  EXPECT_EQ(std::get<spec::QkvPostSpec>(nth<spec::QkvPostSpec>(program, 0).spec).kv,
            spec::KvType::q8_0);
  EXPECT_TRUE(std::ranges::any_of(program.decisions, [](const Decision& decision) {
    return decision.subject.starts_with("gemm tile, k = 64") && !decision.reason.empty();
  }));
}

TEST(LayOut, the_residual_stream_stays_in_place_where_nothing_reads_it_again) {
  SmallGraph g;
  Program program = fuse_small(g.finish(g.dense_layer(g.dense_layer(g.embed(), 0), 1)));
  passes::lay_out(program, {.chunk = 8, .max_outputs = 1, .kv_capacity = 64}, cpu_target);
  const auto& attention_out = nth<spec::GemmSpec>(program, 1);
  const auto& down = nth<spec::GemmSpec>(program, 3);
  EXPECT_EQ(attention_out.buffers[1].index, attention_out.buffers[2].index);
  EXPECT_EQ(down.buffers[1].index, down.buffers[2].index);
  EXPECT_EQ(attention_out.buffers[1].index, down.buffers[1].index);
  for (const auto& launch : program.launches) {
    for (const BufferRef& buffer : launch.buffers) {
      if (buffer.kind == BufferKind::activation) {
        ASSERT_LT(buffer.index, program.activations.size());
      }
    }
  }
}

TEST(LayOut, a_residual_that_is_read_again_is_not_overwritten) {
  SmallGraph g;
  const ValueId x = g.dense_layer(g.embed(), 0);
  g.layer(1);
  const ValueId n = g.attention_block(g.norm(x, "n"));
  const ValueId y = g.sum(x, g.linear(n, "o", SmallGraph::n_embd), "y");
  const ValueId again = g.sum(y, x, "x_again");
  const ModelGraph graph = g.finish(g.dense_layer(again, 2));
  Program program = fuse_small(graph);
  passes::lay_out(program, {.chunk = 8, .max_outputs = 1, .kv_capacity = 64}, cpu_target);
  const auto& add = nth<spec::AddSpec>(program, 0);
  EXPECT_NE(add.buffers[0].index, add.buffers[1].index);
  const auto found = std::ranges::find(program.launches, "blk.1 o + y", &Program::Launch::name);
  ASSERT_NE(found, program.launches.end());
  EXPECT_NE(found->buffers[1].index, found->buffers[2].index);
}

TEST(LayOut, one_weight_is_bound_once_in_each_form) {
  SmallGraph g;
  const ValueId x = g.dense_layer(g.embed(), 0);
  ModelGraph graph = g.finish(x);
  // A tied output: the head's matrix is the embedding's table.
  auto& head = std::get<Linear>(graph.nodes.back().op);
  head.weight = std::get<Embed>(graph.nodes.front().op).table;
  Program program = fuse_small(graph);
  passes::lay_out(program, {.chunk = 8, .max_outputs = 1, .kv_capacity = 64}, cpu_target);
  uint64_t raw = 0, packed = 0;
  for (const WeightBinding& weight : program.weights) {
    if (weight.slice.tensor != head.weight.tensor) continue;
    (weight.form == WeightForm::raw ? raw : packed) += 1;
    EXPECT_EQ(weight.bytes, weight.form == WeightForm::raw ? 0u : 96u * 64u * 2u);
  }
  EXPECT_EQ(raw, 1u);
  EXPECT_EQ(packed, 1u);
}

}  // namespace
}  // namespace quern
