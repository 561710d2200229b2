// Fast mode on a GPU: which GEMMs are cuBLASLt's, what the plan says of it, what it takes, and what
// a plan from a file may not say.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <ranges>

#include "compiler/cuda/cuda_compiler.h"
#include "compiler/plan.h"
#include "compiler/spec_names.h"
#include "models/model.h"
#include "tests/compiler/no_overlap.h"
#include "tests/compiler/small_graph.h"
#include "tests/compiler/sound_plan.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Json = nlohmann::ordered_json;

constexpr uint32_t chunk = 320;
constexpr uint64_t plenty = uint64_t{1} << 40;

ModelGraph small_graph() {
  test::SmallGraph g;
  return g.finish(g.dense_layer(g.dense_layer(g.embed(), 0), 1));
}

Plan plan_of(const ModelGraph& graph, PlanOptions options, const char* target = "sm_90a") {
  if (options.context == 0) options.context = 512;
  return make_plan(graph, options, cuda::make_target(target));
}
Plan fast_plan(uint64_t free_bytes = 0) {
  return plan_of(small_graph(),
                 {.chunk = chunk, .numerics = Numerics::fast, .free_bytes = free_bytes});
}

std::string_view family(const Plan& plan, const Step& step) {
  return spec_family(plan.kernels.at(step.kernel).spec);
}
std::vector<std::string> names(const Plan& plan, StepRun run) {
  std::vector<std::string> list;
  for (const Step& step : plan.steps) {
    if (step.run == run) list.push_back(step.name);
  }
  return list;
}
size_t count(const Plan& plan, std::string_view wanted) {
  return static_cast<size_t>(std::ranges::count_if(
      plan.steps, [&](const Step& step) { return family(plan, step) == wanted; }));
}

TEST(Relax, each_gemm_of_many_rows_has_its_route_and_its_line) {
  const Plan plan = fast_plan();
  // qkv of both layers; what follows the first layer's attention. The rest has one output row.
  const std::vector<std::string> relaxed = {"blk.0 q + k + v", "blk.0 o + attn_res",
                                            "blk.0 gate + up + act", "blk.0 down + ffn_res",
                                            "blk.1 q + k + v"};
  EXPECT_EQ(names(plan, StepRun::few), relaxed);
  EXPECT_EQ(count(plan, "matmul"), relaxed.size());
  EXPECT_EQ(count(plan, "unpack"), relaxed.size());
  EXPECT_EQ(count(plan, "flatten"), relaxed.size());
  EXPECT_EQ(count(plan, "finish"), 1U);  // of the gated unit: all else is the library's own
  for (const char* subject : {"blk.0-1 q + k + v", "blk.0 o + attn_res", "blk.0 gate + up + act",
                              "blk.0 down + ffn_res"}) {
    bool found = false;
    for (const Decision& decision : plan.decisions) {
      found |= decision.subject == subject && decision.choice.starts_with("relaxed: cuBLASLt");
    }
    EXPECT_TRUE(found) << subject;
  }
  EXPECT_THAT(plan.decisions,
              Contains(Field(&Decision::choice, "fast, with 5 of 9 GEMMs relaxed")));
  EXPECT_THAT(describe_plan(plan), HasSubstr("matmul [more than 256 rows]"));
  EXPECT_THAT(describe_plan(plan), HasSubstr("[up to 256 rows]"));
  EXPECT_THAT(describe_plan(plan), HasSubstr("by cuBLASLt"));
}

TEST(Relax, launches_of_few_rows_are_those_of_the_exact_plan) {
  const Plan exact = plan_of(small_graph(), {.chunk = chunk}), fast = fast_plan();
  std::vector<std::string> in_exact, in_fast;
  for (const uint32_t rows : {1U, 8U, 9U, 64U, 65U, 256U}) {
    const auto list = [&](const Plan& plan, std::vector<std::string>& out) {
      for (const Step& step : plan.steps) {
        if (!runs(plan, step, rows)) continue;
        uint32_t kernel = step.kernel;
        for (const StepVariant& variant : std::views::reverse(step.variants)) {
          if (rows <= variant.max_tokens) kernel = variant.kernel;
        }
        out.push_back(step.name + spec_to_text(plan.kernels[kernel].spec));
      }
    };
    list(exact, in_exact);
    list(fast, in_fast);
  }
  EXPECT_EQ(in_exact, in_fast);
}

TEST(Relax, exact_plans_say_nothing_of_it) {
  for (const Plan& plan : {plan_of(small_graph(), {.chunk = chunk}),
                           plan_of(small_graph(), {.chunk = chunk, .free_bytes = plenty})}) {
    const std::string text = plan_to_json(plan);
    for (const char* word :
         {"\"run\"", "matmul", "unpack", "flatten", "finish", "kept", "relaxed", "few_rows"}) {
      EXPECT_THAT(text, Not(HasSubstr(word)));
    }
    EXPECT_EQ(plan.capacity.overhead, staging_bytes);
    EXPECT_FALSE(needs_library(plan));
  }
}

TEST(Relax, chunks_of_few_rows_relax_nothing) {
  const Plan plan = plan_of(small_graph(), {.chunk = 256, .numerics = Numerics::fast});
  EXPECT_FALSE(needs_library(plan));
  EXPECT_THAT(plan.decisions, Contains(Field(&Decision::choice, "fast, with no step relaxed")));
  Plan exact = plan_of(small_graph(), {.chunk = 256});
  exact.options.numerics = Numerics::fast;
  exact.decisions = plan.decisions;
  EXPECT_EQ(plan_to_json(plan), plan_to_json(exact));
}

TEST(Relax, the_head_is_relaxed_where_all_rows_have_logits) {
  const Plan plan =
      plan_of(small_graph(), {.chunk = chunk, .numerics = Numerics::fast, .all_logits = true});
  EXPECT_EQ(count(plan, "matmul"), 9U);
  const auto head = std::ranges::find_if(plan.steps, [&](const Step& step) {
    return family(plan, step) == "matmul" && step.buffers[1].kind == BufferKind::logits;
  });
  EXPECT_NE(head, plan.steps.end());
}

TEST(Relax, rows_that_cublaslt_does_not_take_stay_with_their_kernels_and_say_so) {
  test::SmallGraph h;
  h.graph().vocabulary = 97;
  ModelGraph graph = h.finish(h.dense_layer(h.embed(), 0));
  std::get<Linear>(graph.nodes.back().op).weight.rows = 97;
  std::get<Linear>(graph.nodes.back().op).weight.tensor_rows = 97;
  std::get<Linear>(graph.nodes.back().op).weight.block = 97;
  std::get<Linear>(graph.nodes.back().op).weight.stride = 97;
  graph.values[graph.logits].width = 97;
  for (Node& node : graph.nodes) {
    if (auto* embed = std::get_if<Embed>(&node.op)) {
      embed->table.rows = embed->table.tensor_rows = embed->table.block = embed->table.stride = 97;
    }
  }
  const Plan plan =
      plan_of(graph, {.chunk = chunk, .numerics = Numerics::fast, .all_logits = true});
  const auto head = std::ranges::find_if(plan.steps, [&](const Step& step) {
    return step.buffers[1].kind == BufferKind::logits && step.rows == StepRows::outputs;
  });
  ASSERT_NE(head, plan.steps.end());
  EXPECT_EQ(head->run, StepRun::always);
  EXPECT_EQ(family(plan, *head), "gemm");
  EXPECT_THAT(plan.decisions,
              Contains(Field(&Decision::choice, "not relaxed: Quern's own kernels")));
}

TEST(Relax, memory_is_that_of_the_route_s_buffers) {
  const Plan exact = plan_of(small_graph(), {.chunk = chunk}), scratch = fast_plan(),
             kept = fast_plan(plenty);
  EXPECT_EQ(exact.capacity.weights, scratch.capacity.weights);
  EXPECT_EQ(scratch.capacity.overhead, staging_bytes + library_workspace_bytes);
  EXPECT_EQ(kept.capacity.overhead, scratch.capacity.overhead);
  // Plain rows of f16: q, k, v of both layers, and the first's o, gate and up, down.
  constexpr uint64_t n = test::SmallGraph::n_embd;
  const uint64_t plain = 2 * (2 * (128 * n) + 64 * n + 4 * n * n + n * 2 * n);
  EXPECT_EQ(kept.capacity.weights, exact.capacity.weights + plain);
  EXPECT_EQ(kept.arena_bytes, kept.capacity.weights - exact.capacity.weights +
                                  (kept.capacity.workspace - exact.capacity.workspace) +
                                  exact.arena_bytes);
  EXPECT_LT(kept.capacity.workspace, scratch.capacity.workspace);
  EXPECT_EQ(names(kept, StepRun::once).size(), 5U);
  EXPECT_THAT(names(scratch, StepRun::once), IsEmpty());
  // Sums of the gated unit: rows of the chunk, gate and up, f32.
  const auto sums =
      std::ranges::find(scratch.activations, "blk.0 gate + up + act sums", &ActivationBuffer::name);
  ASSERT_NE(sums, scratch.activations.end());
  EXPECT_EQ(sums->bytes, chunk * 4 * n * 4);
  test::expect_no_overlap(scratch);
  test::expect_no_overlap(kept);
}

TEST(Relax, weights_are_kept_where_three_quarters_of_what_is_free_hold_the_plan) {
  const uint64_t total = fast_plan(plenty).capacity.total();
  EXPECT_THAT(names(fast_plan(total / 3 * 4 + 8), StepRun::once), Not(IsEmpty()));
  EXPECT_THAT(names(fast_plan(total), StepRun::once), IsEmpty());
  EXPECT_EQ(fast_plan(plenty).options.free_bytes, 0U);
}

TEST(Relax, decoding_each_time_asks_for_more_rows_than_kept_weights_do) {
  EXPECT_EQ(fast_plan().few_rows, 256U);
  EXPECT_EQ(fast_plan(plenty).few_rows, 64U);
  EXPECT_EQ(plan_of(small_graph(), {.chunk = chunk}).few_rows, 0U);
}

TEST(Relax, a_residual_is_still_added_in_place) {
  const Plan plan = fast_plan();
  for (const Step& step : plan.steps) {
    const auto* s = std::get_if<spec::MatmulSpec>(&plan.kernels[step.kernel].spec);
    if (s == nullptr || s->residual == 0) continue;
    EXPECT_EQ(step.buffers[1].index, step.buffers[2].index) << step.name;
  }
}

class FastFixture : public testing::TestWithParam<std::string> {};

TEST_P(FastFixture, plans_for_every_target_and_reads_back_as_it_was) {
  const std::string file = "fixtures/" + GetParam() + ".gguf";
  if (!test::shared_file(file)) GTEST_SKIP() << test::missing_shared(file);
  const ModelGraph graph = build_graph(gguf::File::open(*test::shared_file(file)));
  for (const cuda::TargetTraits& row : cuda::target_table()) {
    for (PlanOptions options :
         {PlanOptions{}, PlanOptions{.chunk = 257}, PlanOptions{.chunk = 400, .all_logits = true},
          PlanOptions{.chunk = 65, .attention = "wave", .free_bytes = plenty}}) {
      options.numerics = Numerics::fast;
      const Plan plan = make_plan(graph, options, cuda::make_target(row.name));
      EXPECT_TRUE(needs_library(plan));
      const std::string text = plan_to_json(plan);
      const Plan back = plan_from_json(text, "plan.json");
      EXPECT_EQ(text, plan_to_json(back));
      EXPECT_THAT(diff_plans(plan, back), IsEmpty());
      test::expect_no_overlap(plan);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FastFixture,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "gemma3",
                                         "quant/llama-q4_k_m", "wide/qwen3"),
                         [](const auto& fixture) {
                           std::string name = fixture.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '/' || c == '-'; }, '_');
                           return name;
                         });

TEST(Relax, biases_are_added_by_the_epilogue_kernel) {
  const auto path = test::data_file("fixtures/qwen2.gguf");
  const Plan plan =
      plan_of(build_graph(gguf::File::open(path)), {.chunk = chunk, .numerics = Numerics::fast});
  bool found = false;
  for (const Step& step : plan.steps) {
    const auto* s = std::get_if<spec::FinishSpec>(&plan.kernels[step.kernel].spec);
    if (s == nullptr || s->bias == 0) continue;
    found = true;
    EXPECT_EQ(s->bias, 7U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(step.buffers[3 + i].kind, BufferKind::none);
      EXPECT_EQ(step.buffers[6 + i].kind, BufferKind::weight);
    }
  }
  EXPECT_TRUE(found);
}

// ---- plans from files ----

std::string refusal(const Plan& plan, const std::function<void(Json&)>& edit) {
  Json json = Json::parse(plan_to_json(plan));
  edit(json);
  return test::refusal(json.dump());
}

TEST(RelaxJson, contradictions_are_refused_naming_the_field) {
  const Plan plan = fast_plan(), kept = fast_plan(plenty);
  const auto index_of = [](const Plan& of, std::string_view wanted) {
    for (size_t i = 0; i < of.steps.size(); ++i) {
      if (family(of, of.steps[i]) == wanted) return i;
    }
    return of.steps.size();
  };
  const size_t unpack = index_of(plan, "unpack"), matmul = index_of(plan, "matmul"),
               flatten = index_of(plan, "flatten");
  EXPECT_EQ(refusal(plan, [](Json&) {}), "");
  EXPECT_THAT(refusal(plan, [](Json& j) { j["options"]["numerics"] = "exact"; }),
              HasSubstr("belongs to fast GPU plans alone"));
  // Without the route's steps nothing writes what launches of many rows read.
  EXPECT_THAT(refusal(plan, [&](Json& j) { j["steps"].erase(matmul); }),
              HasSubstr("is read before any step has written it"));
  EXPECT_THAT(refusal(plan, [&](Json& j) { j["steps"][flatten]["run"] = "few"; }),
              HasSubstr("is read before any step has written it"));
  EXPECT_THAT(refusal(plan, [&](Json& j) { j["steps"][flatten]["run"] = "once"; }),
              HasSubstr("is not there when a plan is loaded"));
  EXPECT_THAT(refusal(plan, [&](Json& j) { j["steps"][matmul]["run"] = "once"; }),
              HasSubstr(".run: cuBLASLt runs in launches"));
  EXPECT_THAT(refusal(plan, [&](Json& j) { j["steps"][matmul]["run"] = "sometimes"; }),
              HasSubstr("unknown name"));
  EXPECT_THAT(refusal(kept, [&](Json& j) { j["steps"][index_of(kept, "unpack")]["run"] = "many"; }),
              HasSubstr("is written when the plan is loaded, and no more"));
  EXPECT_THAT(refusal(plan, [](Json& j) { j.erase("few_rows"); }),
              HasSubstr("does not say how many are few"));
  EXPECT_THAT(refusal(plan, [](Json& j) { j["few_rows"] = chunk; }),
              HasSubstr("few_rows: are as many as a chunk has"));
  const std::string kernel = fmt::format("/kernels/{}", plan.steps[matmul].kernel);
  EXPECT_THAT(refusal(plan,
                      [&](Json& j) {
                        j.at(Json::json_pointer(kernel + "/key_digest")) = std::string(64, 'a');
                      }),
              HasSubstr("belongs to a library, which has none"));
  EXPECT_THAT(refusal(plan, [&](Json& j) { j.at(Json::json_pointer(kernel + "/spec/rows")) = 12; }),
              HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal(plan,
                      [&](Json& j) {
                        const uint32_t index = plan.steps[unpack].buffers[0].index;
                        j["activations"][index]["fixed_bytes"] = 64;
                        j["activations"][index]["bytes"] = 64;
                      }),
              HasSubstr("plain weights"));
  EXPECT_THAT(refusal(kept,
                      [&](Json& j) {
                        const uint32_t index =
                            kept.steps[index_of(kept, "unpack")].buffers[0].index;
                        j["activations"][index]["offset"] =
                            kept.activations[kept.steps.front().buffers[2].index].offset;
                      }),
              HasSubstr("lives at the same time"));
}

class RelaxNumbers : public testing::TestWithParam<bool> {};

TEST_P(RelaxNumbers, made_absurd_are_refused_or_make_a_sound_plan) {
  const Plan made = GetParam() ? fast_plan(plenty) : fast_plan();
  test::expect_numbers_refused_or_sound(made, {0, 0xffffffffu, uint64_t{1} << 63, 1});
}

INSTANTIATE_TEST_SUITE_P(Weights, RelaxNumbers, testing::Bool(), [](const auto& kept) {
  return kept.param ? "kept" : "unpacked_each_time";
});

}  // namespace
}  // namespace quern
