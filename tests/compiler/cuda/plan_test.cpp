// Plans for the GPU: of every dense fixture for every target, what their kernels need of the
// buffers, what is refused, and the number of kernels of a real model's shape.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "compiler/capacity.h"
#include "compiler/cuda/cuda_compiler.h"
#include "compiler/device_sizes.h"
#include "compiler/plan.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "models/model.h"
#include "templates/spec/attention_launch.h"
#include "tests/compiler/no_overlap.h"
#include "tests/compiler/small_graph.h"
#include "tests/compiler/sound_plan.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::ordered_json;

ModelGraph fixture_graph(const std::string& name) {
  return build_graph(gguf::File::open(*test::shared_file("fixtures/" + name + ".gguf")));
}

std::string error_of(const ModelGraph& graph, const PlanOptions& options = {},
                     ErrorKind kind = ErrorKind::usage) {
  try {
    make_plan(graph, options, cuda::make_target("sm_90a"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return {};
}

/// The shapes of Llama-3.1-8B with the types that a Q4_K_M file gives its tensors.
class LlamaGraph {
 public:
  static constexpr uint32_t n_embd = 4096, n_ff = 14336, vocabulary = 128256, n_layers = 32;

  LlamaGraph() {
    g_.graph().n_layers = n_layers;
    g_.graph().vocabulary = vocabulary;
    g_.graph().embedding_length = n_embd;
    g_.graph().context_length = 131072;
    Rope& rope = g_.graph().ropes[0];
    rope.kind = RopeKind::norm;
    rope.n_rot = 128;
    rope.inverse_frequency.assign(64, 0.5);
  }

  ModelGraph build() {
    ValueId x = g_.add(Embed{matrix("token_embd", vocabulary, n_embd, QuantType::q4_k)}, {}, n_embd,
                       "token_embd");
    for (uint32_t i = 0; i < n_layers; ++i) x = layer(x, i);
    g_.layer(-1);
    const ValueId rows = g_.select(x);
    g_.graph().logits = linear(g_.norm(rows, "output_norm"), "output", vocabulary, QuantType::q6_k);
    return g_.graph();
  }

 private:
  WeightSlice matrix(const std::string& name, uint64_t rows, uint64_t k, QuantType type) {
    WeightSlice slice = g_.matrix(name, rows, k);
    slice.type = type;
    return slice;
  }
  ValueId linear(ValueId x, const std::string& name, uint32_t rows, QuantType type) {
    const bool selected = g_.graph().values[x].selected;
    return g_.add(Linear{matrix(name, rows, g_.width(x), type), {}}, {x}, rows, name, selected);
  }
  ValueId layer(ValueId x, uint32_t i) {
    g_.layer(static_cast<int32_t>(i));
    // llama.cpp's rule: the first and last eighth, and every third between.
    const bool more = i < n_layers / 8 || i >= 7 * n_layers / 8 || (i - n_layers / 8) % 3 == 2;
    const QuantType wide = more ? QuantType::q6_k : QuantType::q4_k;
    const ValueId n = g_.norm(x, "attn_norm");
    const ValueId q = rope(linear(n, "attn_q", 4096, QuantType::q4_k), "q_rope");
    const ValueId k = rope(linear(n, "attn_k", 1024, QuantType::q4_k), "k_rope");
    const ValueId v = linear(n, "attn_v", 1024, wide);
    const ValueId a = g_.add(Attention{32, 8, 128, 128, 0.08838835f}, {q, k, v}, 4096, "attention");
    x = g_.sum(x, linear(a, "attn_output", n_embd, QuantType::q4_k), "attn_res");
    const ValueId f = g_.norm(x, "ffn_norm");
    const ValueId gate = linear(f, "ffn_gate", n_ff, QuantType::q4_k);
    const ValueId up = linear(f, "ffn_up", n_ff, QuantType::q4_k);
    const ValueId act = g_.add(Glu{}, {gate, up}, n_ff, "act");
    return g_.sum(x, linear(act, "ffn_down", n_embd, wide), "ffn_res");
  }
  ValueId rope(ValueId x, const std::string& name) {
    return g_.add(ApplyRope{128, 0}, {x}, g_.width(x), name);
  }

  test::SmallGraph g_;
};

/// Dynamic shared memory that a kernel is launched with.
uint32_t shared_bytes(const spec::AnySpec& spec) {
  if (const auto* s = std::get_if<spec::GemmSpec>(&spec)) {
    return spec::launch_shape(*s, 1).shared_bytes;
  }
  const auto* s = std::get_if<spec::AttentionSpec>(&spec);
  if (s == nullptr) return 0;
  if (s->path == spec::AttentionPath::wave) {
    return spec::attention_wave_shape(*s, 1, 64).shared_bytes;
  }
  return s->decode != 0 ? spec::attention_decode_shape(*s, 1).shared_bytes
                        : spec::attention_prefill_shape(*s, 1).shared_bytes;
}

Plan small_plan(PlanOptions options = {.context = 256, .chunk = 96}) {
  test::SmallGraph g;
  const ValueId x = g.dense_layer(g.dense_layer(g.embed(), 0), 1);
  return make_plan(g.finish(x), options, cuda::make_target("sm_90a"));
}

// ---- every dense fixture, every target ----

/// Sizes by the text of the kernels' headers and docs/gpu.md, apart from the planner's own
/// arithmetic.
class Sizes {
 public:
  explicit Sizes(const Plan& plan) : plan_(plan) {}

  void expect() const {
    for (const Step& step : plan_.steps) {
      const spec::AnySpec& spec = plan_.kernels.at(step.kernel).spec;
      if (const auto* s = std::get_if<spec::GemmSpec>(&spec)) gemm(step, *s);
      if (const auto* s = std::get_if<spec::AttentionSpec>(&spec)) attention(step, *s);
      if (const auto* s = std::get_if<spec::NormSpec>(&spec)) {
        rows(step, 0, s->width);
        s->residual != 0 ? rows(step, 2, s->width) : operand(step, 2, s->width);
      }
      if (const auto* s = std::get_if<spec::GatherSpec>(&spec)) {
        s->operand != 0 ? operand(step, 0, s->width) : bytes(step, 0, chunk() * s->width * 4);
        s->operand != 0 ? operand(step, 2, s->width) : rows(step, 2, s->width);
      }
    }
  }

 private:
  uint64_t chunk() const { return plan_.options.chunk; }
  void bytes(const Step& step, size_t position, uint64_t expected) const {
    const BufferRef& buffer = step.buffers.at(position);
    ASSERT_EQ(buffer.kind, BufferKind::activation) << step.name << " " << position;
    EXPECT_EQ(plan_.activations.at(buffer.index).bytes, expected) << step.name << " " << position;
  }
  void rows(const Step& step, size_t position, uint64_t width) const {
    if (step.buffers.at(position).kind == BufferKind::logits) return;
    const bool outputs = step.rows == StepRows::outputs;
    bytes(step, position, (outputs ? plan_.max_outputs : chunk()) * width * 4);
  }
  void operand(const Step& step, size_t position, uint64_t width) const {
    bytes(step, position, (width + 63) / 64 * ((chunk() + 63) / 64 * 64) * 64 * 2);
  }
  void gemm(const Step& step, const spec::GemmSpec& s) const {
    uint64_t out = 0;
    for (uint32_t i = 0; i < s.n_segments; ++i) {
      out += s.segments[i].rows;
      const WeightBinding& weight = plan_.weights.at(step.buffers.at(3 + i).index);
      const uint64_t row_tiles = (s.segments[i].rows + 127) / 128;
      const uint64_t k_cells =
          (s.k + spec::gpu_cell_k(s.segments[i].type) - 1) / spec::gpu_cell_k(s.segments[i].type);
      EXPECT_EQ(weight.bytes, row_tiles * k_cells * 8 * spec::gpu_cell_bytes(s.segments[i].type));
      EXPECT_GT(weight.bytes, 0u);
    }
    operand(step, 0, s.k);
    const bool glu = s.epilogue == spec::Epilogue::swiglu || s.epilogue == spec::Epilogue::gelu_glu;
    glu ? operand(step, 1, out / 2) : rows(step, 1, out);
    EXPECT_EQ(plan_.weights.at(step.buffers.at(3).index).glu_up.has_value(), glu);
  }
  void attention(const Step& step, const spec::AttentionSpec& s) const {
    ASSERT_EQ(step.buffers.size(), 7u);
    operand(step, 3, s.n_head * s.value_dim);
    const StateBuffer& keys = plan_.states.at(step.buffers.at(1).index);
    const uint64_t positions = (plan_.options.context + 63) / 64 * 64;
    const uint64_t row = s.kv == spec::KvType::q8_0  ? (s.head_dim + 31) / 32 * 34
                         : s.kv == spec::KvType::f32 ? s.head_dim * 4
                                                     : s.head_dim * 2;
    EXPECT_EQ(keys.bytes, s.n_head_kv * positions * row);
    if (s.path == spec::AttentionPath::wave) return rows(step, 0, s.q_row_width);
    bytes(step, 0, chunk() * s.n_head * s.head_dim * 2);
    const uint64_t scratch = plan_.activations.at(step.buffers.at(5).index).bytes;
    EXPECT_GE(scratch, chunk() * s.n_head * s.value_dim * 4);
    EXPECT_GE(scratch, uint64_t{spec::attention_partial_floats(s, plan_.options.context)} * 4);
    EXPECT_GE(plan_.activations.at(step.buffers.at(6).index).bytes, s.n_head_kv * 4);
  }

  const Plan& plan_;
};

/// Every launch of 1 to the plan's rows finds a kernel that makes that many.
void expect_variants(const Plan& plan) {
  for (const Step& step : plan.steps) {
    const uint32_t most = step.rows == StepRows::outputs ? plan.max_outputs : plan.options.chunk;
    uint32_t last = 0;
    for (const StepVariant& variant : step.variants) {
      EXPECT_GT(variant.max_tokens, last) << step.name;
      EXPECT_LT(variant.max_tokens, most) << step.name << " has a kernel that never runs";
      last = variant.max_tokens;
    }
    const auto* gemm = std::get_if<spec::GemmSpec>(&plan.kernels.at(step.kernel).spec);
    if (gemm != nullptr) {
      EXPECT_EQ(gemm->tile_tokens == 8, most <= 8) << step.name;
      EXPECT_EQ(step.variants.empty(), most <= 8) << step.name;
    }
  }
}

class DenseFixture : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string file = "fixtures/" + GetParam() + ".gguf";
    if (!test::shared_file(file)) GTEST_SKIP() << test::missing_shared(file);
  }
};

TEST_P(DenseFixture, plans_for_every_target_and_the_buffers_hold_what_the_kernels_touch) {
  const ModelGraph graph = fixture_graph(GetParam());
  for (const cuda::TargetTraits& row : cuda::target_table()) {
    const Target target = cuda::make_target(row.name);
    for (const PlanOptions& options :
         {PlanOptions{}, PlanOptions{.context = 65, .chunk = 1},
          PlanOptions{.chunk = 7, .kv = "q8_0"}, PlanOptions{.chunk = 64, .kv = "bf16"},
          PlanOptions{.chunk = 65, .kv = "f32"},
          PlanOptions{.chunk = 200, .attention = "wave", .kv = "f16", .all_logits = true}}) {
      SCOPED_TRACE(fmt::format("{} chunk {} kv {}", row.name, options.chunk, options.kv));
      const Plan plan = make_plan(graph, options, target);
      const std::string text = plan_to_json(plan);
      EXPECT_EQ(text, plan_to_json(plan_from_json(text, "plan.json")));
      EXPECT_THAT(diff_plans(plan, plan_from_json(text, "plan.json")), IsEmpty());
      test::expect_no_overlap(plan);
      Sizes(plan).expect();
      expect_variants(plan);
      for (const PlanKernel& kernel : plan.kernels) {
        EXPECT_LE(shared_bytes(kernel.spec), row.shared_bytes_block) << spec_to_text(kernel.spec);
      }
      EXPECT_EQ(plan.options.attention,
                options.kv == "f32" || options.attention == "wave" ? "wave" : "flash");
    }
  }
}

TEST_P(DenseFixture, everything_that_is_read_takes_device_memory_and_is_counted) {
  const ModelGraph graph = fixture_graph(GetParam());
  const Plan plan = make_plan(graph, {}, cuda::make_target("sm_80"));
  uint64_t values = 0, bytes = 0;
  for (const WeightBinding& weight : plan.weights) {
    EXPECT_GT(weight.bytes, 0u) << weight.slice.tensor;
    bytes += weight.bytes;
    const uint64_t halves = weight.glu_up ? 2 : 1;
    if (weight.form == WeightForm::packed) values += weight.slice.rows * weight.slice.k * halves;
  }
  EXPECT_EQ(plan.capacity.weights, bytes);
  EXPECT_GT(values, graph.parameters / 2);
  uint64_t rope = 0;
  for (const Rope& r : plan.ropes) rope += uint64_t{plan.options.context} * r.n_rot * 4;
  EXPECT_GE(plan.capacity.workspace, plan.arena_bytes + rope + uint64_t{plan.vocabulary} * 4);
  EXPECT_EQ(plan.capacity.overhead, staging_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, DenseFixture,
    testing::Values("llama", "llama3", "qwen2", "qwen3", "gemma3", "quant/llama-q4_0",
                    "quant/llama-q4_k_m", "quant/llama-q8_0", "variants/llama-linear",
                    "variants/llama-yarn", "variants/qwen3-fused-qkv", "wide/llama", "wide/qwen3"),
    [](const auto& fixture) {
      std::string name = fixture.param;
      std::ranges::replace_if(name, [](char c) { return c == '/' || c == '-'; }, '_');
      return name;
    });

// ---- what has no kernels yet ----

class SparseFixture : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(SparseFixture, is_refused_with_the_reason_and_the_remedy) {
  const std::string file = "fixtures/" + GetParam().first + ".gguf";
  if (!test::shared_file(file)) GTEST_SKIP() << test::missing_shared(file);
  EXPECT_EQ(error_of(fixture_graph(GetParam().first)),
            fmt::format("target sm_90a: {} have no GPU kernels yet; use --device cpu",
                        GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, SparseFixture,
    testing::Values(std::pair("qwen3moe", "mixture-of-experts models"),
                    std::pair("olmoe", "mixture-of-experts models"),
                    std::pair("qwen3next", "mixture-of-experts models"),
                    std::pair("qwen35moe", "mixture-of-experts models"),
                    std::pair("variants/llama-moe", "mixture-of-experts models"),
                    std::pair("qwen35", "models with gated delta rule layers")),
    [](const auto& fixture) {
      std::string name = fixture.param.first;
      std::ranges::replace_if(name, [](char c) { return c == '/' || c == '-'; }, '_');
      return name;
    });

TEST(CudaPlan, a_unit_whose_gate_and_up_have_different_types_is_refused) {
  test::SmallGraph g;
  ModelGraph graph = g.finish(g.dense_layer(g.embed(), 0));
  for (Node& node : graph.nodes) {
    if (node.name == "blk.0.up") std::get<Linear>(node.op).weight.type = QuantType::q8_0;
  }
  EXPECT_THAT(error_of(graph), HasSubstr("its gate is f16 and its up q8_0"));
}

TEST(CudaPlan, values_of_a_form_that_no_kernel_reads_are_refused_by_name) {
  test::SmallGraph g;  // A projection of what no norm has made an f16 operand.
  const ValueId x = g.embed();
  g.layer(0);
  EXPECT_THAT(error_of(g.finish(g.linear(x, "bare", test::SmallGraph::n_embd))),
              HasSubstr("blk.0 bare: no GPU kernel computes it: its input is no f16 operand"));
  test::SmallGraph h;  // A sum of what is an operand.
  const ValueId y = h.embed();
  h.layer(0);
  EXPECT_THAT(error_of(h.finish(h.sum(h.norm(y, "a"), h.norm(y, "b"), "sum"))),
              HasSubstr("its input is an f16 operand"));
}

TEST(CudaPlan, options_that_the_target_cannot_do_are_refused_with_a_remedy) {
  test::SmallGraph g;
  ModelGraph graph = g.finish(g.dense_layer(g.embed(), 0));
  graph.n_layers = 1;
  EXPECT_THAT(error_of(graph, {.attention = "flash", .kv = "f32"}),
              HasSubstr("--attention flash: flash attention reads no f32 cache"));
  EXPECT_THAT(error_of(graph, {.device = "cpu"}), HasSubstr("use --device cuda"));
  EXPECT_THAT(error_of(graph, {.gpu_layers = 0}), HasSubstr("--gpu-layers 0"));
  EXPECT_EQ(error_of(graph, {.gpu_layers = 1}), "");
  EXPECT_EQ(error_of(graph, {.device = "cuda:1"}), "");
  const Plan plan = make_plan(graph, {}, cuda::make_target("sm_89"));
  EXPECT_EQ(plan.options.device, "cuda");
  EXPECT_EQ(plan.options.kv, "f16");
  EXPECT_EQ(plan.options.chunk, 2048u);
  // Resolved options settle everything: planning with them gives the same plan.
  const Plan again = make_plan(graph, plan.options, plan.target);
  EXPECT_EQ(plan.options.gpu_layers, 1);
  EXPECT_EQ(again.steps.size(), plan.steps.size());
  EXPECT_EQ(again.options.attention, plan.options.attention);
}

// ---- a real model's shape ----

TEST(CudaPlan, llama_8b_has_at_most_64_kernels_and_shares_them) {
  const ModelGraph graph = LlamaGraph().build();
  for (const cuda::TargetTraits& row : cuda::target_table()) {
    const Plan plan = make_plan(graph, {}, cuda::make_target(row.name));
    EXPECT_LE(plan.kernels.size(), 64u) << row.name;
    EXPECT_GT(plan.steps.size(), 250u);
    std::set<std::string> texts;
    for (const PlanKernel& kernel : plan.kernels) texts.insert(spec_to_text(kernel.spec));
    EXPECT_EQ(texts.size(), plan.kernels.size());
    for (const PlanKernel& kernel : plan.kernels) {
      EXPECT_LE(shared_bytes(kernel.spec), row.shared_bytes_block) << spec_to_text(kernel.spec);
    }
    // The file's bytes, with the table of embeddings beside the head: nothing is decoded at rest.
    constexpr uint64_t gib = uint64_t{1} << 30;
    EXPECT_GT(plan.capacity.weights, 4 * gib);
    EXPECT_LT(plan.capacity.weights, 5 * gib);
  }
}

TEST(CudaPlan, one_output_row_needs_one_kernel_of_the_head) {
  const ModelGraph graph = LlamaGraph().build();
  const Plan plan = make_plan(graph, {}, cuda::make_target("sm_90a"));
  // The head is the last step but one.
  EXPECT_TRUE(plan.steps[plan.steps.size() - 2].variants.empty());
  const Plan all = make_plan(graph, {.all_logits = true}, cuda::make_target("sm_90a"));
  EXPECT_FALSE(all.steps[all.steps.size() - 2].variants.empty());
}

TEST(CudaPlan, ends_with_the_selection_among_its_logits_and_counts_its_memory) {
  const Plan plan = make_plan(LlamaGraph().build(), {}, cuda::make_target("sm_90a"));
  const spec::SelectSpec* selection = selection_of(plan);
  ASSERT_NE(selection, nullptr);
  EXPECT_EQ(selection->vocabulary, LlamaGraph::vocabulary);
  EXPECT_EQ(selection->count, 256u);
  const Step& step = plan.steps.back();
  EXPECT_EQ(step.rows, StepRows::outputs);
  EXPECT_TRUE(step.variants.empty());
  ASSERT_EQ(step.buffers.size(), 5u);
  EXPECT_EQ(step.buffers[0].kind, BufferKind::logits);
  // 126 slices of 1,024 logits: a list of 256 keys and a note each; 16 lists are merged at a time.
  EXPECT_EQ(plan.activations[step.buffers[3].index].bytes, 126u * 257 * 8);
  EXPECT_EQ(plan.activations[step.buffers[4].index].bytes, (8u + 1) * 4);
  Plan without = plan;
  without.steps.pop_back();
  EXPECT_EQ(selection_of(without), nullptr);
  EXPECT_EQ(plan.capacity.workspace - account_of(without).workspace,
            16u + 4 * 1024 + 16 + 8 * 256);  // the wish with its ids, the answer
  // A small vocabulary has no more candidates than tokens.
  const Plan small = small_plan();
  EXPECT_EQ(selection_of(small)->count, std::min(256u, small.vocabulary));
}

TEST(CudaPlan, text_names_the_kernels_of_each_step) {
  const Plan plan = make_plan(LlamaGraph().build(), {}, cuda::make_target("sm_90a"));
  const auto step =
      std::ranges::find_if(plan.steps, [](const Step& s) { return s.variants.size() >= 2; });
  ASSERT_NE(step, plan.steps.end());
  EXPECT_THAT(describe_plan(plan),
              HasSubstr(fmt::format("(up to 8: {}, up to {}: {}", step->variants[0].kernel,
                                    step->variants[1].max_tokens, step->variants[1].kernel)));
}

TEST(CudaPlan, kernels_do_not_depend_on_the_context_and_small_chunks_need_a_part_of_them) {
  const ModelGraph graph = LlamaGraph().build();
  // Text and key of each kernel; keys are empty where there is no NVRTC.
  const auto kernels = [&](const PlanOptions& options) {
    std::set<std::pair<std::string, std::string>> made;
    for (const PlanKernel& kernel : make_plan(graph, options, cuda::make_target("sm_90a")).kernels)
      made.emplace(cuda::emit_source(kernel.spec), kernel.key_digest);
    return made;
  };
  const auto base = kernels({});
  EXPECT_EQ(base, kernels({.context = 32768}));
  for (const uint32_t chunk : {8u, 100u, 1000u}) {
    EXPECT_TRUE(std::ranges::includes(base, kernels({.chunk = chunk}))) << chunk;
  }
  EXPECT_LT(kernels({.chunk = 8}).size(), base.size());
}

TEST(CudaPlan, a_context_that_fits_is_found_and_one_more_does_not_fit) {
  test::SmallGraph g;
  ModelGraph graph = g.finish(g.dense_layer(g.dense_layer(g.embed(), 0), 1));
  graph.context_length = 100000;
  const Target target = cuda::make_target("sm_90a");
  const auto total = [&](uint32_t context) {
    return make_plan(graph, {.context = context, .chunk = 32}, target).capacity.total();
  };
  const uint64_t limit = total(5000);
  const CapacityReport report =
      check_capacity(graph, {.context = 100000, .chunk = 32}, target, {limit, limit});
  EXPECT_EQ(report.verdict, Verdict::exceeds_device);
  EXPECT_GE(report.largest_context, 5000u);
  EXPECT_LE(total(report.largest_context), limit);
  EXPECT_GT(total(report.largest_context + 1), limit);
}

// ---- JSON ----

std::string edited(const std::string& pointer, const Json& value) {
  Json json = Json::parse(plan_to_json(small_plan()));
  json.at(Json::json_pointer(pointer)) = value;
  return test::refusal(json.dump());
}

TEST(CudaPlanJson, contradictions_are_refused_naming_the_field) {
  const Plan plan = small_plan();
  const auto index_of = [&](auto&& wanted) {
    return static_cast<size_t>(std::ranges::find_if(plan.steps, wanted) - plan.steps.begin());
  };
  const size_t gemm = index_of([](const Step& s) { return !s.variants.empty(); });
  const size_t attention = index_of([&](const Step& s) {
    return std::holds_alternative<spec::AttentionSpec>(plan.kernels[s.kernel].spec);
  });
  const auto at = [](size_t step, const std::string& rest) {
    return fmt::format("/steps/{}/{}", step, rest);
  };
  ASSERT_EQ(edited("/model_name", "another"), "");
  EXPECT_THAT(edited("/target/name", "sm_10"), HasSubstr("target.name"));
  EXPECT_THAT(edited("/target/kind", "cpu"), HasSubstr("kernels[0]"));
  EXPECT_THAT(edited(at(gemm, "variants/0/1"), 10000), HasSubstr("variants[0]"));
  EXPECT_THAT(edited(at(gemm, "variants/0/0"), 9), HasSubstr("too few rows"));
  const Json variant = {plan.steps[gemm].variants[0].max_tokens,
                        plan.steps[gemm].variants[0].kernel};
  EXPECT_THAT(edited(at(gemm, "variants"), Json::array({variant, variant})),
              HasSubstr("variants[1]"));
  EXPECT_THAT(edited(at(gemm, "variants/0/1"), 0), HasSubstr(fmt::format("steps[{}]", gemm)));
  EXPECT_THAT(edited(at(gemm, "kernel"), plan.steps[gemm].variants[0].kernel),
              HasSubstr("too few rows"));
  EXPECT_THAT(edited(at(attention, "kernel"), plan.steps[attention].variants[0].kernel),
              HasSubstr("too few rows"));
  EXPECT_THAT(edited(at(gemm, "scales/0"), 3), HasSubstr("power of two"));
  EXPECT_EQ(edited(at(gemm, "scales/0"), 0.25), "");
  const uint32_t counters = plan.steps[attention].buffers[6].index;
  EXPECT_THAT(edited(fmt::format("/activations/{}/form", counters), "rows"),
              HasSubstr(fmt::format("steps[{}].buffers[6]", attention)));
  EXPECT_THAT(edited(fmt::format("/activations/{}/offset", counters), plan.activations[0].offset),
              HasSubstr("lives at the same time"));
  const size_t select = plan.steps.size() - 1;
  EXPECT_THAT(edited(fmt::format("/kernels/{}/spec/vocabulary", plan.steps[select].kernel), 7),
              HasSubstr(fmt::format("steps[{}].buffers[0]", select)));
  EXPECT_THAT(edited(fmt::format("/kernels/{}/spec/count", plan.steps[select].kernel), 1025),
              HasSubstr("count"));
  EXPECT_THAT(edited(at(select, "rows"), "tokens"), HasSubstr(fmt::format("steps[{}]", select)));
  EXPECT_THAT(edited(at(select - 1, "kernel"), plan.steps[select].kernel),
              HasSubstr(fmt::format("steps[{}].", select - 1)));
  Json reordered = Json::parse(plan_to_json(plan));
  std::swap(reordered["steps"][select], reordered["steps"][select - 1]);
  EXPECT_THROW(plan_from_json(reordered.dump(), "plan.json"), Error);
  const auto glu = std::ranges::find_if(
      plan.weights, [](const WeightBinding& w) { return w.glu_up.has_value(); });
  ASSERT_NE(glu, plan.weights.end());
  const std::string up = fmt::format("/weights/{}/glu_up", glu - plan.weights.begin());
  EXPECT_THAT(edited(up, nullptr), HasSubstr("bytes"));
  EXPECT_THAT(edited(up + "/rows", 8), HasSubstr("glu_up"));
  EXPECT_THAT(edited(up + "/offset", 8), HasSubstr("glu_up"));
  EXPECT_THAT(edited("/kernels/0/key_digest", "x"), HasSubstr("key_digest"));
  EXPECT_EQ(edited("/kernels/0/key_digest", ""), "");
}

TEST(CudaPlanJson, every_number_made_absurd_is_refused_or_makes_a_sound_plan) {
  test::expect_numbers_refused_or_sound(small_plan(), {0, 0xffffffffu, uint64_t{1} << 63, 1});
}

}  // namespace
}  // namespace quern
