// Whole plans: of every fixture, as JSON and back, hostile JSON, text and differences.

#include "compiler/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "models/model.h"
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

const Target cpu_target = {"cpu", "x86-64-v3", "+avx2,+fma"};

ModelGraph fixture_graph(const std::string& name) {
  const auto path = test::shared_file("fixtures/" + name + ".gguf");
  return build_graph(gguf::File::open(*path));
}

Plan small_plan(PlanOptions options = {.context = 256, .chunk = 16}) {
  test::SmallGraph g;
  const ValueId x = g.dense_layer(g.dense_layer(g.embed(), 0), 1);
  return make_plan(g.finish(x), options, cpu_target);
}

/// What GEMMs and attention, by the text of their specs' documentation, need of their buffers.
void expect_sizes(const Plan& plan) {
  for (const Step& step : plan.steps) {
    const uint64_t rows = step.rows == StepRows::tokens ? plan.options.chunk : plan.max_outputs;
    const auto expect_rows = [&](size_t position, uint64_t width) {
      const BufferRef& buffer = step.buffers.at(position);
      if (buffer.kind == BufferKind::logits) {
        EXPECT_EQ(width, plan.vocabulary) << step.name;
        return;
      }
      ASSERT_EQ(buffer.kind, BufferKind::activation) << step.name;
      EXPECT_EQ(plan.activations.at(buffer.index).bytes, rows * width * 4) << step.name;
    };
    const spec::AnySpec& spec = plan.kernels.at(step.kernel).spec;
    if (const auto* gemm = std::get_if<spec::GemmSpec>(&spec)) {
      uint64_t out = 0;
      for (uint32_t i = 0; i < gemm->n_segments; ++i) out += gemm->segments[i].rows;
      const bool glu =
          gemm->epilogue == spec::Epilogue::swiglu || gemm->epilogue == spec::Epilogue::gelu_glu;
      expect_rows(0, gemm->k);
      expect_rows(1, glu ? out / 2 : out);
      for (uint32_t i = 0; i < gemm->n_segments; ++i) {
        const WeightBinding& weight = plan.weights.at(step.buffers.at(3 + i).index);
        EXPECT_EQ(weight.bytes,
                  cpu::packed_bytes(gemm->segments[i].type, gemm->segments[i].rows, gemm->k));
      }
    } else if (const auto* attention = std::get_if<spec::AttentionSpec>(&spec)) {
      expect_rows(0, attention->q_row_width);
      expect_rows(3, attention->n_head * attention->value_dim);
      const StateBuffer& keys = plan.states.at(step.buffers.at(1).index);
      EXPECT_EQ(keys.kind, StateKind::key_cache);
      EXPECT_EQ(keys.bytes,
                cpu::kv_cache_bytes(attention->kv, attention->n_head_kv, attention->head_dim,
                                    (plan.options.context + 63) / 64 * 64));
    }
  }
}

// ---- every fixture ----

class EveryFixture : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string file = "fixtures/" + GetParam() + ".gguf";
    if (!test::shared_file(file)) GTEST_SKIP() << test::missing_shared(file);
  }
};

TEST_P(EveryFixture, plans_round_trip_byte_for_byte_and_buffers_do_not_overlap) {
  const ModelGraph graph = fixture_graph(GetParam());
  for (const PlanOptions& options :
       {PlanOptions{}, PlanOptions{.context = 65, .chunk = 1},
        PlanOptions{.chunk = 7, .kv = "q8_0"},
        PlanOptions{.chunk = 48, .attention = "wave", .kv = "f16", .all_logits = true}}) {
    const Plan plan = make_plan(graph, options, cpu_target);
    const std::string text = plan_to_json(plan);
    EXPECT_EQ(text, plan_to_json(plan_from_json(text, "plan.json")));
    EXPECT_EQ(text, plan_to_json(make_plan(graph, options, cpu_target)));
    EXPECT_THAT(diff_plans(plan, plan_from_json(text, "plan.json")), IsEmpty());
    test::expect_no_overlap(plan);
    expect_sizes(plan);
    EXPECT_EQ(plan.max_outputs, options.all_logits ? 48u : 1u);
    EXPECT_THAT(describe_plan(plan), HasSubstr(graph.architecture));
  }
}

TEST_P(EveryFixture, every_tensor_of_the_graph_is_bound_and_every_node_is_decided_on) {
  const ModelGraph graph = fixture_graph(GetParam());
  const Plan plan = make_plan(graph, {}, cpu_target);
  uint64_t packed_values = 0;
  for (const WeightBinding& weight : plan.weights) {
    if (weight.form != WeightForm::packed) continue;
    const auto& repack = std::get<spec::RepackSpec>(plan.kernels.at(weight.repack_kernel).spec);
    EXPECT_EQ(repack.type, to_spec(weight.slice.type));
    EXPECT_EQ(repack.k, weight.slice.k);
    packed_values += weight.slice.experts * weight.slice.rows * weight.slice.k;
  }
  EXPECT_GT(packed_values, graph.parameters / 2);
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<SelectOutputs>(node.op)) continue;
    const std::string name =
        node.layer < 0 ? node.name : node.name.substr(node.name.find('.', 4) + 1);
    EXPECT_TRUE(std::ranges::any_of(plan.decisions, [&](const Decision& decision) {
      return decision.subject.find(name) != std::string::npos;
    })) << node.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, EveryFixture,
    testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3moe", "olmoe", "gemma3", "qwen3next",
                    "qwen35", "qwen35moe", "quant/llama-q4_k_m", "quant/llama-q4_0",
                    "quant/olmoe-q4_k_m", "quant/qwen35-q4_k_m", "variants/qwen3-fused-qkv",
                    "variants/llama-moe", "variants/llama-yarn", "wide/llama", "wide/qwen3moe",
                    "wide/qwen35moe"),
    [](const auto& fixture) {
      std::string name = fixture.param;
      std::ranges::replace_if(name, [](char c) { return c == '/' || c == '-'; }, '_');
      return name;
    });

// ---- properties of a plan ----

TEST(Plan, a_llama_layer_is_eight_steps) {
  const Plan plan = make_plan(fixture_graph("llama"), {}, cpu_target);
  std::vector<std::string> families;
  for (const Step& step : plan.steps) {
    if (step.layer == 0) families.emplace_back(spec_family(plan.kernels[step.kernel].spec));
  }
  EXPECT_THAT(families, testing::ElementsAre("norm", "gemm", "qkv_post", "attention", "gemm",
                                             "norm", "gemm", "gemm"));
}

TEST(Plan, kernels_do_not_depend_on_chunk_context_or_logits_asked_for) {
  const ModelGraph graph = fixture_graph("qwen35moe");
  const auto keys = [&](const PlanOptions& options) {
    std::vector<std::string> digests;
    for (const PlanKernel& kernel : make_plan(graph, options, cpu_target).kernels) {
      digests.push_back(kernel.key_digest);
    }
    return digests;
  };
  const auto base = keys({});
  EXPECT_EQ(base, keys({.chunk = 7}));
  EXPECT_EQ(base, keys({.context = 64}));
  EXPECT_EQ(base, keys({.all_logits = true}));
  EXPECT_NE(base, keys({.kv = "f16"}));
}

TEST(Plan, equal_specs_are_one_kernel) {
  const Plan plan = small_plan();
  std::map<std::string, int> seen;
  for (const PlanKernel& kernel : plan.kernels) EXPECT_EQ(seen[spec_to_text(kernel.spec)]++, 0);
  EXPECT_LT(plan.kernels.size(), plan.steps.size());
}

TEST(Plan, the_cache_has_whole_blocks_of_64_positions) {
  EXPECT_EQ(kv_capacity(1), 64u);
  EXPECT_EQ(kv_capacity(64), 64u);
  EXPECT_EQ(kv_capacity(65), 128u);
  EXPECT_EQ(kv_capacity(0xffffffffu) % 64, 0u);
}

TEST(Plan, the_account_is_the_sum_of_its_parts) {
  const Plan plan = make_plan(fixture_graph("qwen35"), {.chunk = 32}, cpu_target);
  uint64_t kv = 0, recurrent = 0, weights = 0;
  for (const StateBuffer& state : plan.states) {
    (state.kind == StateKind::conv || state.kind == StateKind::recurrent ? recurrent : kv) +=
        state.bytes;
  }
  for (const WeightBinding& weight : plan.weights) weights += weight.bytes;
  EXPECT_EQ(plan.capacity.kv, kv);
  EXPECT_EQ(plan.capacity.recurrent, recurrent);
  EXPECT_EQ(plan.capacity.weights, weights);
  EXPECT_GT(recurrent, 0u);
  EXPECT_GE(plan.capacity.workspace, plan.arena_bytes + uint64_t{plan.vocabulary} * 4);
  EXPECT_EQ(plan.capacity.total(), plan.capacity.weights + kv + recurrent +
                                       plan.capacity.workspace + plan.capacity.overhead);
}

// ---- JSON ----

std::string edited(const std::string& pointer, const Json& value) {
  Json json = Json::parse(plan_to_json(small_plan()));
  json.at(Json::json_pointer(pointer)) = value;
  return test::refusal(json.dump());
}

TEST(PlanJson, names_that_are_no_utf8_still_give_a_stable_text) {
  Plan plan = small_plan();
  plan.model_name = "caf\xe9 \xff";
  const std::string text = plan_to_json(plan);
  EXPECT_EQ(text, plan_to_json(plan_from_json(text, "plan.json")));
}

TEST(PlanJson, another_version_is_refused_before_anything_else) {
  EXPECT_THAT(test::refusal(R"({"quern_plan": 1})"), HasSubstr("version 2 of plans, not 1"));
  EXPECT_THAT(test::refusal("{}"), HasSubstr("no Quern plan"));
  EXPECT_THAT(test::refusal("[]"), HasSubstr("no Quern plan"));
  EXPECT_THAT(test::refusal("nonsense"), HasSubstr("not JSON"));
  EXPECT_THAT(test::refusal(""), HasSubstr("plan.json"));
}

TEST(PlanJson, contradictions_are_refused_naming_the_field) {
  ASSERT_EQ(edited("/model_name", "another"), "");
  EXPECT_THAT(edited("/steps/1/kernel", 10000), HasSubstr("steps[1].kernel"));
  EXPECT_THAT(edited("/steps/1/buffers/0/1", 10000), HasSubstr("steps[1].buffers[0]"));
  EXPECT_THAT(edited("/steps/1/buffers/0/0", "weight"), HasSubstr("steps[1].buffers[0]"));
  EXPECT_THAT(edited("/steps/1/buffers/0/0", "disk"), HasSubstr("disk"));
  EXPECT_THAT(edited("/steps/1/buffers", Json::array()), HasSubstr("steps[1].buffers"));
  EXPECT_THAT(edited("/steps/1/rows", "outputs"), HasSubstr("steps[1]"));
  EXPECT_THAT(edited("/activations/0/bytes", 1), HasSubstr("activations[0].bytes"));
  EXPECT_THAT(edited("/activations/0/offset", 1), HasSubstr("activations[0].offset"));
  EXPECT_THAT(edited("/activations/0/offset", uint64_t{1} << 63), HasSubstr("activations[0]"));
  EXPECT_THAT(edited("/activations/0/bytes_per_row", uint64_t{1} << 63),
              HasSubstr("activations[0]"));
  EXPECT_THAT(edited("/arena_bytes", 0), HasSubstr("activations["));
  EXPECT_THAT(edited("/states/0/bytes", 64), HasSubstr("not the state that \"K cache\" needs"));
  EXPECT_THAT(edited("/states/1/offset", 0), HasSubstr("states[1].offset"));
  EXPECT_THAT(edited("/weights/0/rows", 1), HasSubstr("buffers"));
  EXPECT_THAT(edited("/weights/2/bytes", 1), HasSubstr("weights[2].bytes"));
  EXPECT_THAT(edited("/weights/2/repack_kernel", 0), HasSubstr("weights[2].repack_kernel"));
  EXPECT_THAT(edited("/weights/2/offset", 1), HasSubstr("weights[2]"));
  EXPECT_THAT(edited("/weights/2/block", 0), HasSubstr("weights[2]"));
  EXPECT_THAT(edited("/kernels/0/spec/width", 65), HasSubstr("steps[0]"));
  EXPECT_THAT(edited("/kernels/0/spec/width", 0), HasSubstr("kernels[0].spec.width"));
  EXPECT_THAT(edited("/kernels/0/spec/tier", "mma"), HasSubstr("kernels[0].spec.tier"));
  EXPECT_THAT(edited("/kernels/0/key_digest", "../../etc/passwd"), HasSubstr("key_digest"));
  EXPECT_THAT(edited("/kernels/0/entry_digest", "../x"), HasSubstr("entry_digest"));
  EXPECT_THAT(edited("/options/chunk", 0), HasSubstr("options.chunk"));
  EXPECT_THAT(edited("/options/chunk", -1), HasSubstr("options.chunk"));
  EXPECT_THAT(edited("/options/context", 1u << 31), HasSubstr("options.context"));
  EXPECT_THAT(edited("/options/kv", "f64"), HasSubstr("options.kv"));
  EXPECT_THAT(edited("/max_outputs", 17), HasSubstr("max_outputs"));
  EXPECT_THAT(edited("/vocabulary", 97), HasSubstr("steps["));
  EXPECT_THAT(edited("/ropes/0/n_rot", 8), HasSubstr("ropes[0]"));
  EXPECT_THAT(edited("/ropes/0/inverse_frequency/0", nullptr), HasSubstr("inverse_frequency[0]"));
  EXPECT_THAT(edited("/capacity/kv", 1), HasSubstr("capacity"));
  EXPECT_THAT(edited("/steps", Json::array()), HasSubstr("logits"));
}

TEST(PlanJson, buffers_that_live_together_may_not_share_bytes) {
  const Plan plan = small_plan();
  Json json = Json::parse(plan_to_json(plan));
  // The residual stream lives through a layer: everything moved onto it collides.
  json["activations"][1]["offset"] = json["activations"][0]["offset"];
  EXPECT_THAT(test::refusal(json.dump()), HasSubstr("lives at the same time"));
}

TEST(PlanJson, every_missing_or_added_field_is_refused) {
  const Json json = Json::parse(plan_to_json(small_plan()));
  size_t tried = 0;
  // Walks objects at the top, and the first element of each list.
  const auto walk = [&](const auto& self, const Json::json_pointer& at) -> void {
    const Json& here = json.at(at);
    if (here.is_array() && !here.empty()) return self(self, at / 0);
    if (!here.is_object()) return;
    Json added = json;
    added.at(at)["stranger"] = 1;
    EXPECT_NE(test::refusal(added.dump()), "") << at.to_string();
    for (const auto& [key, value] : here.items()) {
      Json removed = json;
      removed.at(at).erase(key);
      EXPECT_THAT(test::refusal(removed.dump()), HasSubstr(key)) << at.to_string();
      ++tried;
      self(self, at / key);
    }
  };
  walk(walk, Json::json_pointer());
  EXPECT_GT(tried, 60u);
}

TEST(PlanJson, damaged_bytes_are_refused_or_make_a_sound_plan) {
  const std::string text = plan_to_json(small_plan());
  constexpr uint32_t seed = 20240607;
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = text;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        case 2:
          damaged[at] = "0123456789[]{},:\"-e."[random() % 20];
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 16));
      }
    }
    SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
    test::expect_refused_or_sound(damaged);
  }
  for (size_t length = 0; length < text.size(); length += 97) {
    EXPECT_NE(test::refusal(text.substr(0, length)), "") << length;
  }
}

TEST(PlanJson, every_number_made_absurd_is_refused_or_makes_a_sound_plan) {
  test::expect_numbers_refused_or_sound(small_plan(),
                                        {0, 0xffffffffu, uint64_t{1} << 63, -1, 1e300, nullptr});
}

// ---- text and differences ----

TEST(PlanText, shows_target_options_kernels_steps_decisions_and_capacity) {
  const Plan plan = small_plan();
  const std::string text = describe_plan(plan);
  for (const std::string& part :
       {std::string("x86-64-v3"), std::string("+avx2"), std::string("chunk 16"),
        std::string("kv f32"), plan.steps[2].name, plan.decisions.front().reason,
        plan.kernels[0].key_digest.substr(0, 12), std::string("total"),
        fmt::format("kernels ({})", plan.kernels.size())}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(PlanDiff, a_plan_does_not_differ_from_itself) {
  EXPECT_THAT(diff_plans(small_plan(), small_plan()), IsEmpty());
}

TEST(PlanDiff, names_what_changed_and_nothing_else) {
  const Plan base = small_plan();
  const auto lines = diff_plans(base, small_plan({.context = 256, .chunk = 16, .kv = "f16"}));
  EXPECT_THAT(lines, Contains("option kv: f32 -> f16"));
  EXPECT_THAT(lines, Contains("step blk.0 attention kv: f32 -> f16"));
  EXPECT_THAT(lines, testing::Not(Contains(HasSubstr("step blk.0 q + k + v"))));
  EXPECT_THAT(diff_plans(base, small_plan({.context = 128, .chunk = 16})),
              Contains("option ctx: 256 -> 128"));
}

TEST(PlanDiff, a_layer_more_is_told_as_steps_of_one_plan_alone) {
  test::SmallGraph g;
  ValueId x = g.embed();
  for (int32_t layer = 0; layer < 3; ++layer) x = g.dense_layer(x, layer);
  const Plan longer = make_plan(g.finish(x), {.context = 256, .chunk = 16}, cpu_target);
  const auto lines = diff_plans(small_plan(), longer);
  EXPECT_THAT(lines, Contains("step blk.2 attention: only in the second plan"));
  EXPECT_THAT(lines, testing::Not(Contains(HasSubstr("step blk.0 attention"))));
}

TEST(PlanDiff, no_change_of_the_json_goes_unseen) {
  const Plan base = small_plan();
  const Json json = Json::parse(plan_to_json(base));
  size_t survived = 0;
  const Json flat = json.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    Json changed = json;
    if (value.is_string()) {
      changed.at(Json::json_pointer(pointer)) = value.get<std::string>() + "x";
    } else if (value.is_number()) {
      changed.at(Json::json_pointer(pointer)) = value.get<double>() + 1;
      if (value.is_number_integer()) {
        changed.at(Json::json_pointer(pointer)) = value.get<uint64_t>() + 1;
      }
    } else {
      continue;
    }
    std::optional<Plan> plan;
    try {
      plan = plan_from_json(changed.dump(), "plan.json");
    } catch (const Error&) {
      continue;
    }
    ++survived;
    EXPECT_FALSE(diff_plans(base, *plan).empty()) << pointer;
  }
  EXPECT_GT(survived, 30u);
}

}  // namespace
}  // namespace quern
