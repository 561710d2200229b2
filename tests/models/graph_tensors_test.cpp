// Every tensor that a family reads is needed, or its absence has a meaning, and its shape and type
// are checked; tensors that would change the result are never passed over.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/error.h"
#include "tests/support/edited_model.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using test::EditedModel;
using test::flags;
using test::u32;

EditedModel fixture(const std::string& name) {
  return EditedModel::from(test::data_file("fixtures/" + name + ".gguf"));
}

void expect_refusal(const EditedModel& model, const std::string& named, const std::string& what) {
  try {
    model.graph();
    ADD_FAILURE() << named << " " << what << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model);
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos)
        << named << " " << what << " was refused by: " << error.what();
  }
}

class GraphTensors : public testing::TestWithParam<const char*> {
 protected:
  EditedModel model = fixture(GetParam());

  /// Tensors whose absence has a meaning: a tied output, plain frequencies.
  bool may_be_absent(const std::string& name) const {
    const bool tied_allowed = model.architecture() != "olmoe";
    return (name == "output.weight" && tied_allowed) || name == "rope_freqs.weight";
  }

  /// The model with one tensor given another shape, and bytes to match.
  EditedModel reshaped(size_t index, std::vector<uint64_t> shape) const {
    EditedModel changed = model;
    EditedModel::Tensor& tensor = changed.tensors[index];
    const std::string name = tensor.name;
    const QuantType type = tensor.type;
    tensor.name = "replaced";
    changed.add_zeros(name, std::move(shape), type);
    std::swap(changed.tensors[index], changed.tensors.back());
    changed.tensors.pop_back();
    return changed;
  }
};

TEST_P(GraphTensors, a_missing_tensor_is_named) {
  for (const EditedModel::Tensor& tensor : model.tensors) {
    EditedModel cut = model;
    cut.erase_tensor(tensor.name);
    if (may_be_absent(tensor.name)) {
      EXPECT_NO_THROW(cut.graph()) << tensor.name;
    } else {
      expect_refusal(cut, tensor.name, "missing");
    }
  }
}

TEST_P(GraphTensors, a_tensor_of_another_shape_is_named) {
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const EditedModel::Tensor& tensor = model.tensors[i];
    for (size_t dimension = 0; dimension < tensor.shape.size(); ++dimension) {
      std::vector<uint64_t> larger = tensor.shape;
      ++larger[dimension];
      expect_refusal(reshaped(i, larger), tensor.name, "one larger");
      if (tensor.shape[dimension] == 1) continue;
      std::vector<uint64_t> smaller = tensor.shape;
      --smaller[dimension];
      expect_refusal(reshaped(i, smaller), tensor.name, "one smaller");
    }
    std::vector<uint64_t> deeper = tensor.shape;
    deeper.push_back(2);
    expect_refusal(reshaped(i, deeper), tensor.name, "of one dimension more");
    std::vector<uint64_t> reversed(tensor.shape.rbegin(), tensor.shape.rend());
    if (reversed != tensor.shape && tensor.shape.back() != 1) {
      expect_refusal(reshaped(i, reversed), tensor.name, "reversed");
    }
  }
}

TEST_P(GraphTensors, a_vector_of_another_type_is_named) {
  size_t vectors = 0;
  for (const EditedModel::Tensor& tensor : model.tensors) {
    if (tensor.shape.size() != 1) continue;
    EditedModel changed = model;
    changed.erase_tensor(tensor.name);
    changed.add_zeros(tensor.name, tensor.shape, QuantType::f16);
    expect_refusal(changed, tensor.name, "in f16");
    ++vectors;
  }
  EXPECT_GE(vectors, 5u);
}

TEST_P(GraphTensors, all_tensors_are_used_and_counted_once) {
  const ModelGraph graph = model.graph();
  EXPECT_TRUE(graph.unused_tensors.empty());
  uint64_t bytes = 0;
  for (const EditedModel::Tensor& tensor : model.tensors) bytes += tensor.data.size();
  EXPECT_EQ(graph.weight_bytes, bytes);
}

TEST_P(GraphTensors, tensors_that_would_change_the_result_are_refused) {
  for (const char* name : {"blk.0.attn_norm.bias", "blk.0.attn_output.scale",
                           "blk.1.ffn_up_exps.bias", "rope_factors_long.weight"}) {
    EditedModel changed = model;
    changed.add_zeros(name, {128});
    const bool counts_as_experts =
        model.architecture() == "llama" || !model.metadata.has(model.full_key("expert_count"));
    const bool expert = std::string_view(name).find("_exps") != std::string_view::npos;
    expect_refusal(changed, expert && counts_as_experts ? "expert_count" : name, "present");
  }
}

TEST_P(GraphTensors, a_tensor_without_use_is_listed) {
  EditedModel changed = model;
  changed.add_zeros("blk.0.attn_sinks.weight", {4});
  changed.add_zeros("something.else", {4});
  const std::vector<std::string> expected = {"blk.0.attn_sinks.weight", "something.else"};
  EXPECT_EQ(changed.graph().unused_tensors, expected);
}

TEST_P(GraphTensors, a_block_beyond_block_count_is_refused) {
  for (const char* name : {"blk.9.attn_norm.weight", "blk.99999999999999999999.x"}) {
    EditedModel changed = model;
    changed.add_zeros(name, {128});
    expect_refusal(changed, model.full_key("block_count"), "too small");
  }
}

INSTANTIATE_TEST_SUITE_P(families, GraphTensors,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3moe", "olmoe",
                                         "gemma3", "qwen3next", "qwen35", "qwen35moe"),
                         [](const auto& name) { return std::string(name.param); });

const std::vector<int32_t> tokens = {3, 141, 59, 26, 5, 35, 89, 79, 32, 38, 4, 62};

TEST(graph_tensors, fused_qkv_with_biases_computes_the_same) {
  EditedModel model = fixture("qwen2");
  const auto expected = model.logits(tokens);
  for (const std::string block : {"blk.0.", "blk.1."}) {
    for (const std::string part : {".weight", ".bias"}) {
      model.concatenate({block + "attn_q" + part, block + "attn_k" + part, block + "attn_v" + part},
                        block + "attn_qkv" + part);
    }
  }
  EXPECT_EQ(model.logits(tokens), expected);
  EXPECT_TRUE(model.graph().unused_tensors.empty());
}

TEST(graph_tensors, fused_qkv_beside_an_output_gate_computes_the_same) {
  EditedModel model = fixture("qwen35");
  const auto expected = model.logits(tokens);
  model.concatenate({"blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_v.weight"},
                    "blk.3.attn_qkv.weight");
  EXPECT_EQ(model.logits(tokens), expected);
}

TEST(graph_tensors, fused_gate_and_up_experts_compute_the_same) {
  for (const char* name : {"qwen3moe", "olmoe", "qwen3next", "qwen35moe"}) {
    EditedModel model = fixture(name);
    const auto expected = model.logits(tokens);
    const uint64_t blocks = model.metadata.get_uint(model.full_key("block_count"));
    for (uint64_t i = 0; i < blocks; ++i) {
      const std::string block = "blk." + std::to_string(i) + ".";
      model.concatenate({block + "ffn_gate_exps.weight", block + "ffn_up_exps.weight"},
                        block + "ffn_gate_up_exps.weight");
    }
    EXPECT_EQ(model.logits(tokens), expected) << name;
  }
}

TEST(graph_tensors, blocks_after_the_trunk_are_left_out) {
  for (const char* name : {"qwen35", "qwen35moe", "qwen3next"}) {
    EditedModel model = fixture(name);
    const auto expected = model.logits(tokens);
    model.set("block_count", u32(5));
    model.set("nextn_predict_layers", u32(1));
    model.add_zeros("blk.4.nextn.eh_proj.weight", {256, 128});
    model.add_zeros("blk.4.attn_norm.weight", {128});
    model.add_zeros("blk.4.nextn.enorm.bias", {128});
    EXPECT_EQ(model.graph().n_layers, 4u);
    EXPECT_TRUE(model.graph().unused_tensors.empty());
    EXPECT_EQ(model.logits(tokens), expected);
    // The array may speak of all blocks or of the trunk.
    model.set("attention.recurrent_layers", flags({1, 1, 1, 0, 1}));
    EXPECT_EQ(model.logits(tokens), expected);
  }
}

TEST(graph_tensors, a_bias_beside_a_weight_is_added) {
  EditedModel model = fixture("llama");
  const auto before = model.logits(tokens);
  const std::vector<std::pair<std::string, uint64_t>> biases = {
      {"attn_q", 128}, {"attn_k", 64},    {"attn_v", 64},   {"attn_output", 128},
      {"ffn_up", 256}, {"ffn_gate", 256}, {"ffn_down", 128}};
  for (const auto& [name, width] : biases) {
    EditedModel biased = model;
    biased.add_zeros("blk.1." + name + ".bias", {width});
    EXPECT_EQ(biased.logits(tokens), before) << name << " of zeros";
    for (std::byte& byte : biased.tensors.back().data) byte = std::byte{0x3e};
    EXPECT_NE(biased.logits(tokens), before) << name;
    biased.erase_tensor("blk.1." + name + ".bias");
    biased.add_zeros("blk.1." + name + ".bias", {width + 1});
    expect_refusal(biased, "blk.1." + name + ".bias", "too long");
  }
}

TEST(graph_tensors, the_legacy_layout_of_qwen3next_is_refused_by_name) {
  EditedModel model = fixture("qwen3next");
  model.erase_tensor("blk.0.attn_qkv.weight");
  model.erase_tensor("blk.0.attn_gate.weight");
  model.add_zeros("blk.0.ssm_in.weight", {128, 384}, QuantType::f16);
  expect_refusal(model, "blk.0.ssm_in.weight", "present");
}

TEST(graph_tensors, nonsense_in_rope_freqs_is_refused) {
  EditedModel model = fixture("llama3");
  for (std::byte& byte : model.tensor("rope_freqs.weight").data) byte = std::byte{0xff};
  expect_refusal(model, "rope_freqs.weight", "of NaN");
  for (std::byte& byte : model.tensor("rope_freqs.weight").data) byte = std::byte{0};
  expect_refusal(model, "rope_freqs.weight", "of zeros");
}

}  // namespace
}  // namespace quern
