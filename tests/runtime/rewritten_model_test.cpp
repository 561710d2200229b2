// Fixtures written again with other tensor types or layouts: what must not change the bits does
// not.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "models/gguf/writer.h"
#include "tests/runtime/model_support.h"
#include "tests/support/temporary_folder.h"

namespace quern::test {
namespace {

/// A tensor in memory.
struct NewTensor {
  std::string name;
  std::vector<uint64_t> shape;
  QuantType type = QuantType::f32;
  std::vector<std::byte> data;
};

NewTensor copy_of(const gguf::Tensor& tensor) {
  return {tensor.name, tensor.shape, tensor.type, {tensor.data.begin(), tensor.data.end()}};
}

void write_model(const std::filesystem::path& path, const gguf::Metadata& metadata,
                 const std::vector<NewTensor>& tensors) {
  std::vector<gguf::TensorToWrite> list;
  list.reserve(tensors.size());
  for (const NewTensor& tensor : tensors) {
    list.push_back({tensor.name, tensor.shape, tensor.type,
                    [&tensor](const gguf::TensorToWrite::Sink& sink) { sink(tensor.data); }});
  }
  gguf::write_file(path, metadata, list);
}

NewTensor decoded(const NewTensor& tensor) {
  NewTensor result{tensor.name, tensor.shape, QuantType::f32, {}};
  uint64_t values = 1;
  for (const uint64_t extent : tensor.shape) values *= extent;
  result.data.resize(values * sizeof(float));
  decode_row(tensor.type, tensor.data.data(), reinterpret_cast<float*>(result.data.data()), values);
  return result;
}

/// Where a block's f16 scales lie, and a size for them that gives weights of about 0.1.
struct Scales {
  std::vector<size_t> at;
  float size = 0;
};

const std::map<QuantType, Scales>& block_scales() {
  static const std::map<QuantType, Scales> table = {
      {QuantType::q4_0, {{0}, 0.01F}},    {QuantType::q4_1, {{0, 2}, 0.01F}},
      {QuantType::q5_0, {{0}, 0.006F}},   {QuantType::q5_1, {{0, 2}, 0.006F}},
      {QuantType::q8_0, {{0}, 0.001F}},   {QuantType::q2_k, {{80, 82}, 0.003F}},
      {QuantType::q3_k, {{108}, 0.001F}}, {QuantType::q4_k, {{0, 2}, 1.5e-4F}},
      {QuantType::q5_k, {{0, 2}, 8e-5F}}, {QuantType::q6_k, {{208}, 3e-5F}},
      {QuantType::iq4_nl, {{0}, 0.001F}}, {QuantType::iq4_xs, {{0}, 3e-5F}},
      {QuantType::mxfp4, {{}, 0}},        {QuantType::f16, {{}, 0}},
      {QuantType::bf16, {{}, 0}},         {QuantType::f32, {{}, 0}}};
  return table;
}

void put_u16(std::vector<std::byte>& data, size_t at, uint16_t value) {
  std::memcpy(data.data() + at, &value, 2);
}

/// Blocks of random bytes with scales of either sign and sound size.
NewTensor random_blocks(const gguf::Tensor& like, QuantType type, std::mt19937& random) {
  const QuantTraits& traits = quant_traits(type);
  const uint64_t blocks = like.elements() / traits.block_values;
  NewTensor tensor{like.name, like.shape, type, {}};
  tensor.data.resize(blocks * traits.block_bytes);
  std::normal_distribution<float> normal;
  if (traits.block_values == 1) {
    for (uint64_t i = 0; i < blocks; ++i) {
      const float value = 0.1F * normal(random);
      if (type == QuantType::f32) std::memcpy(tensor.data.data() + 4 * i, &value, 4);
      if (type == QuantType::f16) put_u16(tensor.data, 2 * i, f32_to_f16(value));
      if (type == QuantType::bf16) put_u16(tensor.data, 2 * i, f32_to_bf16(value));
    }
    return tensor;
  }
  for (std::byte& b : tensor.data) b = static_cast<std::byte>(random());
  const Scales& scales = block_scales().at(type);
  for (uint64_t i = 0; i < blocks; ++i) {
    for (const size_t at : scales.at) {
      put_u16(tensor.data, i * traits.block_bytes + at, f32_to_f16(scales.size * normal(random)));
    }
    if (type == QuantType::mxfp4) {
      tensor.data[i * traits.block_bytes] = static_cast<std::byte>(119 + random() % 4);
    }
  }
  return tensor;
}

/// Logits of every token of a golden file, in chunks of 16, at the end token by token.
std::vector<float> logits_of(const std::shared_ptr<Engine>& engine, const Golden& golden) {
  const auto session = engine->new_session();
  const std::span<const TokenId> tokens = golden.token_ids;
  const auto first = static_cast<uint32_t>(tokens.size() - 3);
  std::vector<float> logits = session->feed(tokens.first(first), 0, OutputRows::all);
  for (uint32_t i = first; i < tokens.size(); ++i) {
    const auto row = session->feed(tokens.subspan(i, 1), i, OutputRows::last);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

PlanOptions options_for(const Golden& golden) {
  return test_options(static_cast<uint32_t>(golden.token_ids.size()), 16);
}

std::vector<float> logits_of(const std::filesystem::path& path, const Golden& golden) {
  return logits_of(load_fixture(path, options_for(golden)), golden);
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

class EveryTypeTest : public testing::TestWithParam<QuantTraits> {};

TEST_P(EveryTypeTest, random_blocks_give_the_bits_of_the_same_file_decoded_to_f32) {
  const QuantType type = GetParam().type;
  const TemporaryFolder folder;
  for (const char* name : {"quant/llama-q4_k_m", "quant/olmoe-q4_k_m"}) {
    const std::string stem = std::string("fixtures/") + name;
    const auto path = shared_file(stem + ".gguf");
    const auto golden_path = shared_file(stem + ".golden.gguf");
    if (!path || !golden_path) {
      if (std::string_view(name).find("olmoe") != std::string_view::npos) continue;
      GTEST_SKIP() << missing_shared(stem + ".gguf");
    }
    const Golden golden = load_golden(*golden_path);
    const auto file = gguf::File::open(*path);
    std::mt19937 random(static_cast<uint32_t>(type) + 100);
    std::vector<NewTensor> packed;
    std::vector<NewTensor> plain;
    size_t matrices = 0;
    for (const gguf::Tensor& tensor : file.tensors()) {
      const bool matrix = tensor.shape.size() >= 2 && tensor.shape[0] % 256 == 0;
      matrices += matrix;
      packed.push_back(matrix ? random_blocks(tensor, type, random) : copy_of(tensor));
      plain.push_back(matrix ? decoded(packed.back()) : copy_of(tensor));
    }
    ASSERT_GT(matrices, 10U) << name;
    write_model(folder / "packed.gguf", file.metadata(), packed);
    write_model(folder / "plain.gguf", file.metadata(), plain);
    const auto logits = logits_of(folder / "packed.gguf", golden);
    EXPECT_TRUE(all_finite(logits)) << name;
    EXPECT_TRUE(same_bits(logits, logits_of(folder / "plain.gguf", golden))) << name;
  }
}

std::string type_name(const testing::TestParamInfo<QuantTraits>& info) {
  return std::string(info.param.name);
}

INSTANTIATE_TEST_SUITE_P(Types, EveryTypeTest,
                         testing::ValuesIn(quant_table().begin(), quant_table().end()), type_name);

TEST(RewrittenModel, a_fused_qkv_with_biases_gives_the_bits_of_the_separate_tensors) {
  const auto path = data_file("fixtures/qwen2.gguf");
  const auto golden = load_golden(data_file("fixtures/qwen2.golden.gguf"));
  const auto file = gguf::File::open(path);
  std::vector<NewTensor> tensors;
  for (const gguf::Tensor& tensor : file.tensors()) {
    bool part = false;
    for (const char* which : {".attn_q.", ".attn_k.", ".attn_v."}) {
      part = part || tensor.name.find(which) != std::string::npos;
    }
    if (!part) tensors.push_back(copy_of(tensor));
  }
  for (int layer = 0;; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".attn_";
    if (file.find(block + "q.weight") == nullptr) break;
    for (const char* suffix : {".weight", ".bias"}) {
      NewTensor whole = copy_of(*file.find(block + "q" + suffix));
      whole.name = block + "qkv" + suffix;
      for (const char* which : {"k", "v"}) {
        const gguf::Tensor* part = file.find(block + which + suffix);
        whole.shape.back() += part->shape.back();
        whole.data.insert(whole.data.end(), part->data.begin(), part->data.end());
      }
      tensors.push_back(std::move(whole));
    }
  }
  const TemporaryFolder folder;
  write_model(folder / "fused.gguf", file.metadata(), tensors);
  EXPECT_TRUE(same_bits(logits_of(folder / "fused.gguf", golden), logits_of(path, golden)));
}

TEST(RewrittenModel, vectors_that_are_not_f32_are_read_as_f32) {
  // The families ask for f32 vectors, so the plan is that of the file decoded to f32.
  const auto golden = load_golden(data_file("fixtures/qwen2.golden.gguf"));
  const auto file = gguf::File::open(data_file("fixtures/qwen2.gguf"));  // It has norms and biases.
  const TemporaryFolder folder;
  for (const QuantType type : {QuantType::f16, QuantType::bf16}) {
    std::vector<NewTensor> half;
    std::vector<NewTensor> plain;
    std::mt19937 random(3);
    for (const gguf::Tensor& tensor : file.tensors()) {
      const bool vector = tensor.shape.size() == 1;
      half.push_back(vector ? random_blocks(tensor, type, random) : copy_of(tensor));
      plain.push_back(vector ? decoded(half.back()) : copy_of(tensor));
    }
    write_model(folder / "half.gguf", file.metadata(), half);
    write_model(folder / "plain.gguf", file.metadata(), plain);
    Plan plan = plan_fixture(gguf::File::open(folder / "plain.gguf"), options_for(golden));
    gguf::File half_file = gguf::File::open(folder / "half.gguf");
    plan.model_fingerprint = half_file.fingerprint();
    const auto engine =
        Engine::load(std::move(half_file), std::move(plan), test_store(), cpu::compile_kernel, {});
    EXPECT_TRUE(same_bits(logits_of(engine, golden), logits_of(folder / "plain.gguf", golden)))
        << quant_traits(type).name;
  }
}

}  // namespace
}  // namespace quern::test
