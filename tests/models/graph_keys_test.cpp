// A file whose metadata lies is refused, and the message names the key, for every key that a
// family reads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/model.h"
#include "tests/support/edited_model.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using test::EditedModel;
using test::f32;
using test::flag;
using test::flags;
using test::ints;
using test::text;
using test::texts;
using test::u32;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr uint64_t huge = uint64_t{1} << 40;

using Lies = std::vector<gguf::Value>;

Lies integer_lies(Lies more = {}) {
  more.insert(more.end(), {u32(0), u32(huge), u32(~uint64_t{0}), text("four"), f32(4)});
  return more;
}

Lies real_lies(Lies more = {}) {
  more.insert(more.end(), {f32(-1), f32(nan), f32(infinity), text("four"), u32(4)});
  return more;
}

/// For each key (without the architecture), values that every file of tests/data contradicts, or
/// that make no sense anywhere.
const std::map<std::string, Lies>& lies() {
  static const std::map<std::string, Lies> table = {
      {"general.architecture", {text(""), text("gpt2"), text("LLAMA"), u32(7)}},
      {"tokenizer.ggml.tokens", {texts({"a", "b", "c"}), u32(320), ints({1, 2})}},
      {"vocab_size", integer_lies({u32(319), u32(321), u32(511)})},
      {"context_length", integer_lies({u32(uint64_t{1} << 31)})},
      {"embedding_length", integer_lies({u32(64), u32(127), u32(129), u32(1 << 20)})},
      {"block_count", integer_lies({u32(1), u32(7), u32(4096), u32(4097)})},
      {"nextn_predict_layers", {u32(1), u32(4096), u32(huge), text("one")}},
      {"attention.layer_norm_rms_epsilon", real_lies({f32(0), f32(1)})},
      {"attention.head_count",
       integer_lies({u32(3), u32(5), u32(8), u32(1 << 17), ints({4, 4, 4, 4, 4}), ints({4, 2}),
                     ints({4, 4, 2, 4}), ints({4, 4, 4, 4, 4, 2}), ints({}), texts({"4", "4"})})},
      {"attention.head_count_kv",
       integer_lies({u32(3), u32(8), ints({2, 2, 2, 2, 2}), ints({1, 2}), ints({-1, -1})})},
      {"attention.key_length", integer_lies({u32(16), u32(31), u32(33), u32(1 << 17)})},
      {"attention.value_length", integer_lies({u32(16), u32(33), u32(1 << 17)})},
      {"rope.dimension_count", integer_lies({u32(1), u32(15), u32(66), u32(1000)})},
      {"rope.freq_base", real_lies({f32(0), f32(1)})},
      {"rope.freq_base_swa", real_lies({f32(0), f32(1)})},
      {"rope.scaling.type", {text("dynamic"), text("longrope"), text(""), u32(1)}},
      {"rope.scaling.factor", real_lies()},
      {"rope.scale_linear", real_lies()},
      {"rope.scaling.attn_factor", real_lies({f32(0)})},
      {"rope.scaling.original_context_length", integer_lies()},
      {"rope.scaling.yarn_ext_factor", real_lies({f32(2)})},
      {"rope.scaling.yarn_attn_factor", real_lies({f32(0)})},
      {"rope.scaling.yarn_beta_fast", real_lies({f32(0), f32(0.5)})},
      {"rope.scaling.yarn_beta_slow", real_lies({f32(0), f32(64)})},
      {"rope.scaling.yarn_log_multiplier", real_lies({f32(0.1)})},
      {"rope.dimension_sections",
       {ints({3, 3, 1, 0}), ints({3, 3, 3, 0}), ints({2, 2, 4, 0}), ints({8, 0, 0, 0}),
        ints({0, 0, 0, 8}), ints({3, 3, 2}), ints({0, 0, 0, 0}), ints({-3, 6, 5, 0}),
        ints({3, 3, 1 << 30, 0}), ints({}), u32(8), texts({"3", "3", "2", "0"})}},
      {"feed_forward_length", integer_lies({u32(63), u32(255), u32(1 << 24), ints({256})})},
      {"expert_count", {u32(7), u32(9), u32(4), u32(huge), text("eight"), f32(8)}},
      {"expert_used_count", integer_lies({u32(9), ints({2}), ints({9, 9})})},
      {"expert_feed_forward_length", integer_lies({u32(63), u32(128)})},
      {"expert_shared_feed_forward_length", integer_lies({u32(63), u32(128)})},
      {"expert_gating_func", {u32(2), u32(huge), text("softmax")}},
      {"expert_weights_norm", {u32(1), text("yes")}},
      {"expert_weights_scale", real_lies({f32(0.5), f32(2.5)})},
      {"attention.scale", real_lies()},
      {"attention.clamp_kqv", real_lies({f32(8)})},
      {"attention.sliding_window", integer_lies()},
      {"attention.sliding_window_pattern", integer_lies({flags({1, 1, 0}), ints({1, 1, 0})})},
      {"attn_logit_softcapping", real_lies({f32(50)})},
      {"final_logit_softcapping", real_lies()},
      {"ssm.conv_kernel", integer_lies({u32(1), u32(3), u32(5)})},
      {"ssm.inner_size", integer_lies({u32(127), u32(64), u32(256)})},
      {"ssm.state_size", integer_lies({u32(16), u32(31), u32(64)})},
      {"ssm.group_count", integer_lies({u32(1), u32(3), u32(4)})},
      {"ssm.time_step_rank", integer_lies({u32(2), u32(3), u32(8)})},
      {"attention.recurrent_layers",
       {flags({1, 1, 0}), flags({1, 1, 1, 1}), flags({0, 0, 0, 0}), flags({1, 1, 1, 0, 0, 0}),
        flags({}), ints({1, 1, 1, 0}), flag(true)}},
      {"full_attention_interval", integer_lies({u32(1), u32(2), u32(3), u32(5)})},
  };
  return table;
}

/// Whether the message holds the key as a whole: "head_count" is not named by "head_count_kv".
bool names_key(const std::string& message, const std::string& key) {
  for (size_t at = message.find(key); at != std::string::npos; at = message.find(key, at + 1)) {
    const size_t end = at + key.size();
    const auto in_key = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    };
    const bool ends = end == message.size() || !in_key(message[end]);
    if (ends && (at == 0 || !in_key(message[at - 1]))) return true;
  }
  return false;
}

std::string describe(const gguf::Value& value) {
  return std::visit(
      [](const auto& data) -> std::string {
        using T = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return "\"" + data + "\"";
        } else if constexpr (std::is_arithmetic_v<T>) {
          return fmt::format("{}", data);
        } else {
          return fmt::format("array of {}", data.size());
        }
      },
      value.data);
}

void expect_refusal(const EditedModel& model, const std::string& key, const std::string& lie) {
  const std::string what = key + " = " + lie;
  try {
    model.graph();
    ADD_FAILURE() << what << " was believed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model) << what;
    EXPECT_TRUE(names_key(error.what(), key)) << what << " was refused by: " << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << " raised " << error.what();
  }
}

/// A base model: a fixture and keys to add to it, so that further keys are read.
struct Base {
  const char* name;
  const char* fixture;
  std::map<std::string, gguf::Value> added;
};

void PrintTo(const Base& base, std::ostream* out) {
  *out << base.name;
}

std::optional<EditedModel> load(const Base& base) {
  const auto path = test::shared_file(std::string("fixtures/") + base.fixture + ".gguf");
  if (!path) return std::nullopt;
  EditedModel model = EditedModel::from(*path);
  for (const auto& [key, value] : base.added) model.set(key, value);
  return model;
}

class GraphKeys : public testing::TestWithParam<Base> {
 protected:
  void SetUp() override {
    model = load(GetParam());
    if (!model) GTEST_SKIP() << test::missing_shared(GetParam().fixture);
  }
  std::optional<EditedModel> model;
};

TEST_P(GraphKeys, every_key_that_is_read_is_refused_when_it_lies) {
  const std::string prefix = model->architecture() + ".";
  size_t tried = 0;
  for (const std::string& full : model->graph().keys_read) {
    const std::string key = full.starts_with(prefix) ? full.substr(prefix.size()) : full;
    const auto entry = lies().find(key);
    ASSERT_NE(entry, lies().end()) << full << " is read but no lie about it is tested";
    for (const gguf::Value& lie : entry->second) {
      EditedModel liar = *model;
      liar.set(key, lie);
      expect_refusal(liar, full, describe(lie));
      ++tried;
    }
  }
  EXPECT_GT(tried, 50u);
}

TEST_P(GraphKeys, a_key_is_named_when_it_is_missing_or_else_it_has_a_default) {
  static const std::vector<std::string> required = {
      "context_length",       "embedding_length",     "block_count",
      "attention.head_count", "vocab_size",           "attention.layer_norm_rms_epsilon",
      "expert_used_count",    "ssm.conv_kernel",      "ssm.inner_size",
      "ssm.state_size",       "ssm.time_step_rank",   "ssm.group_count",
      "expert_count",         "general.architecture", "rope.dimension_sections"};
  const std::vector<std::string> keys = model->metadata.keys();
  for (const std::string& key : required) {
    EditedModel cut = *model;
    const std::string full = model->full_key(key);
    if (!cut.metadata.has(full)) continue;
    cut.erase_key(key);
    expect_refusal(cut, full, "nothing");
  }
}

INSTANTIATE_TEST_SUITE_P(
    families, GraphKeys,
    testing::Values(Base{"llama", "llama", {}}, Base{"llama3", "llama3", {}},
                    Base{"llama_yarn",
                         "llama",
                         {{"rope.scaling.type", text("yarn")}, {"rope.scaling.factor", f32(4)}}},
                    Base{"llama_moe", "variants/llama-moe", {}}, Base{"qwen2", "qwen2", {}},
                    Base{"qwen3", "qwen3", {}}, Base{"qwen3moe", "qwen3moe", {}},
                    Base{"olmoe", "olmoe", {}}, Base{"gemma3", "gemma3", {}},
                    Base{"qwen3next", "qwen3next", {}}, Base{"qwen35", "qwen35", {}},
                    Base{"qwen35moe", "qwen35moe", {}}),
    [](const auto& base) { return std::string(base.param.name); });

EditedModel fixture(const std::string& name) {
  return EditedModel::from(test::data_file("fixtures/" + name + ".gguf"));
}

TEST(graph_keys, unknown_architecture_lists_the_known) {
  EditedModel model = fixture("llama");
  model.set("general.architecture", text("mamba"));
  try {
    model.graph();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
    EXPECT_TRUE(names_key(error.what(), "general.architecture"));
    EXPECT_NE(error.reason().find("mamba"), std::string::npos);
    for (const std::string& name : known_architectures()) {
      EXPECT_TRUE(names_key(error.remedy(), name)) << name;
    }
  }
}

TEST(graph_keys, contradictory_routing_weights_are_refused) {
  for (const bool renormalised : {true, false}) {
    EditedModel model = fixture(renormalised ? "qwen3moe" : "olmoe");
    model.set("expert_weights_norm", flag(renormalised));
    EXPECT_NO_THROW(model.graph());
    model.set("expert_weights_norm", flag(!renormalised));
    expect_refusal(model, model.full_key("expert_weights_norm"), "the other way");
  }
}

TEST(graph_keys, zero_experts_beside_expert_tensors_are_refused) {
  for (const char* name : {"qwen3moe", "olmoe", "qwen3next", "qwen35moe"}) {
    EditedModel model = fixture(name);
    model.set("expert_count", u32(0));
    expect_refusal(model, model.full_key("expert_count"), "0");
  }
  EditedModel model = fixture("llama");
  model.add_zeros("blk.1.ffn_up_exps.weight", {128, 64, 4});
  expect_refusal(model, "llama.expert_count", "nothing beside an expert tensor");
}

TEST(graph_keys, tokens_must_agree_with_the_embedding_without_vocab_size) {
  EditedModel model = fixture("qwen3");
  model.erase_key("vocab_size");
  model.set("tokenizer.ggml.tokens", texts(std::vector<std::string>(320, "t")));
  EXPECT_EQ(model.graph().vocabulary, 320u);
  model.set("tokenizer.ggml.tokens", texts(std::vector<std::string>(319, "t")));
  expect_refusal(model, "tokenizer.ggml.tokens", "319 entries");
}

TEST(graph_keys, values_equal_in_every_block_may_be_an_array) {
  EditedModel model = fixture("llama");
  const ModelGraph plain = model.graph();
  model.set("attention.head_count", ints({4, 4}));
  model.set("attention.head_count_kv", ints({2, 2}));
  model.set("feed_forward_length", ints({256, 256}));
  const ModelGraph arrays = model.graph();
  EXPECT_EQ(arrays.nodes.size(), plain.nodes.size());
  EXPECT_EQ(arrays.weight_bytes, plain.weight_bytes);
}

TEST(graph_keys, yarn_without_a_factor_is_refused) {
  EditedModel model = fixture("llama");
  model.set("rope.scaling.type", text("yarn"));
  expect_refusal(model, "llama.rope.scaling.factor", "nothing");
}

TEST(graph_keys, partial_rotation_is_refused_where_a_family_has_none) {
  for (const char* name : {"llama", "qwen2", "qwen3", "qwen3moe", "olmoe", "gemma3"}) {
    EditedModel model = fixture(name);
    model.set("rope.dimension_count", u32(16));
    expect_refusal(model, model.full_key("rope.dimension_count"), "16");
  }
}

TEST(graph_keys, sections_of_a_file_that_sets_none_are_accepted_at_any_rotation) {
  EditedModel model = fixture("qwen35");
  const ModelGraph before = model.graph();
  model.set("rope.dimension_sections", ints({11, 11, 10, 0}));
  EXPECT_EQ(model.graph().ropes[0].inverse_frequency, before.ropes[0].inverse_frequency);
}

}  // namespace
}  // namespace quern
