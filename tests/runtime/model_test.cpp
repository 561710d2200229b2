// Whole models on the CPU back end against the golden logits (DESIGN section 9), and the bits of
// section 4.

#include <gtest/gtest.h>

#include "tests/runtime/model_support.h"

namespace quern::test {
namespace {

struct Fixture {
  const char* name;
  double bar = 1e-4;
};

void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.name;
}

std::string case_name(const testing::TestParamInfo<Fixture>& info) {
  return case_name_of(info.param.name);
}

class ModelTest : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    const std::string stem = std::string("fixtures/") + GetParam().name;
    const auto model = shared_file(stem + ".gguf");
    const auto golden = shared_file(stem + ".golden.gguf");
    if (!model || !golden) GTEST_SKIP() << missing_shared(stem + ".gguf");
    path_ = *model;
    golden_ = load_golden(*golden);
    rows_ = golden_rows(golden_);
  }

  uint32_t n_tokens() const { return static_cast<uint32_t>(golden_.token_ids.size()); }
  /// fixtures.
  std::shared_ptr<Engine> load(uint32_t threads = 2) const {
    return load_fixture(path_, test_options(n_tokens()), threads);
  }

  std::filesystem::path path_;
  Golden golden_;
  std::vector<uint32_t> rows_;
};

TEST_P(ModelTest, logits_meet_the_bar) {
  const auto engine = load();
  const auto session = engine->new_session();
  const auto logits = run_rows(*session, golden_.token_ids, rows_, 0);
  ASSERT_EQ(logits.size(), golden_.logits.size());
  const Deviation found = deviation(logits, golden_);
  EXPECT_LE(found.relative, GetParam().bar);
  EXPECT_EQ(found.wrong_argmax, 0U);
  RecordProperty("relative_error", std::to_string(found.relative));
}

TEST_P(ModelTest, bits_do_not_depend_on_chunking) {
  const auto engine = load();
  const auto session = engine->new_session();
  const auto whole = run_rows(*session, golden_.token_ids, rows_, 512);
  for (const uint32_t chunk : {1U, 7U, 16U, 48U}) {
    session->reset();
    EXPECT_TRUE(same_bits(run_rows(*session, golden_.token_ids, rows_, chunk), whole))
        << "chunk " << chunk;
  }
  session->reset();
  EXPECT_TRUE(same_bits(step_rows(*session, golden_.token_ids, rows_), whole)) << "step";
}

TEST_P(ModelTest, bits_do_not_depend_on_the_number_of_threads) {
  std::vector<float> first;
  for (const uint32_t threads : {1U, 2U, 3U}) {
    const auto engine = load(threads);
    const auto session = engine->new_session();
    const auto logits = run_rows(*session, golden_.token_ids, rows_, 48);
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(logits, first)) << threads << " threads";
  }
}

TEST_P(ModelTest, a_saved_restored_or_branched_session_goes_on_with_the_same_bits) {
  const auto engine = load();
  const auto session = engine->new_session();
  expect_states_to_move(*engine, *session, golden_.token_ids);
}

INSTANTIATE_TEST_SUITE_P(
    Dense, ModelTest,
    testing::Values(Fixture{"llama"}, Fixture{"llama3"}, Fixture{"qwen2"}, Fixture{"qwen3"},
                    Fixture{"gemma3"}, Fixture{"quant/llama-q4_0"}, Fixture{"quant/llama-q4_k_m"},
                    Fixture{"quant/llama-q8_0"}, Fixture{"variants/llama-linear"},
                    Fixture{"variants/llama-yarn"}, Fixture{"variants/qwen3-fused-qkv"},
                    Fixture{"wide/llama"}, Fixture{"wide/qwen3"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(Experts, ModelTest,
                         testing::Values(Fixture{"olmoe"}, Fixture{"qwen3moe"},
                                         Fixture{"variants/llama-moe"},
                                         Fixture{"quant/olmoe-q4_k_m"}, Fixture{"wide/olmoe"},
                                         Fixture{"wide/qwen3moe"}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Hybrid, ModelTest,
                         testing::Values(Fixture{"qwen3next"}, Fixture{"qwen35"},
                                         Fixture{"qwen35moe"}, Fixture{"quant/qwen35-q4_k_m"},
                                         Fixture{"wide/qwen35", 2e-4},
                                         Fixture{"wide/qwen35moe", 2e-4}),
                         case_name);

class KvTypeTest : public testing::TestWithParam<const char*> {};

TEST_P(KvTypeTest, bits_do_not_depend_on_chunking_and_logits_stay_near) {
  const auto golden = load_golden(data_file("fixtures/llama.golden.gguf"));
  PlanOptions options = test_options(static_cast<uint32_t>(golden.token_ids.size()));
  options.kv = GetParam();
  const auto engine = load_fixture(data_file("fixtures/llama.gguf"), options);
  const auto session = engine->new_session();
  const auto rows = golden_rows(golden);
  const auto whole = run_rows(*session, golden.token_ids, rows, 0);
  EXPECT_LT(deviation(whole, golden).relative, 0.3);
  EXPECT_EQ(deviation(whole, golden).relative > 1e-5, std::string(GetParam()) != "f32")
      << "a cache of " << GetParam() << " must round";
  for (const uint32_t chunk : {1U, 7U, 16U}) {
    session->reset();
    EXPECT_TRUE(same_bits(run_rows(*session, golden.token_ids, rows, chunk), whole)) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvTypeTest, testing::Values("f32", "f16", "bf16", "q8_0"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace quern::test
