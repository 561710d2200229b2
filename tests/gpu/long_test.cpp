// Equal bits over long prompts: one chunk, chunks of 512, uneven chunks, token by token, for every
// cache type, each by the path that the plan names.

#include <gtest/gtest.h>

#include <random>

#include "tests/gpu/support/engine.h"
#include "tests/support/synthetic_model.h"

namespace quern::test {
namespace {

struct LongCase {
  const char* shape;
  const char* kv;
  bool flash;
};

void PrintTo(const LongCase& c, std::ostream* out) {
  *out << c.shape << ' ' << c.kv;
}

class LongPrompts : public testing::TestWithParam<LongCase> {
 protected:
  static constexpr uint32_t longest = 9001;
  static constexpr uint32_t lengths[] = {1, 17, 512, 4200, longest};

  void SetUp() override {
    QUERN_NEED_GPU();
    engine_ = load_on_gpu(synthetic_model(GetParam().shape, "q4_k_m"),
                          gpu_options(longest + 7, longest, GetParam().kv));
    session_ = engine_->new_session();
    std::mt19937 random(5);
    for (uint32_t i = 0; i < longest; ++i) {
      tokens_.push_back(static_cast<TokenId>(random() % engine_->plan().vocabulary));
    }
  }

  void expect_path(bool prefill, bool decode) const {
    const bool flash = GetParam().flash;
    EXPECT_EQ(launches(*session_, "attention flash") > 0, flash && prefill);
    EXPECT_EQ(launches(*session_, "attention flash decode") > 0, flash && decode);
    EXPECT_EQ(launches(*session_, "attention wave") > 0, !flash);
  }
  std::vector<float> last_row(uint32_t length, uint32_t chunk) {
    session_->reset();
    return session_->feed(std::span(tokens_).first(length), 0, OutputRows::last, chunk);
  }

  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
  std::vector<TokenId> tokens_;
};

TEST_P(LongPrompts, give_the_same_bits_in_any_chunks) {
  std::vector<uint32_t> rows;
  for (const uint32_t length : lengths) rows.push_back(length - 1);
  const auto whole = run_rows(*session_, tokens_, rows, 0);
  expect_path(true, false);
  const size_t vocabulary = engine_->plan().vocabulary;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const float> expected = std::span(whole).subspan(i * vocabulary, vocabulary);
    EXPECT_TRUE(same_bits(last_row(lengths[i], 0), expected)) << lengths[i] << " in one chunk";
    EXPECT_TRUE(same_bits(last_row(lengths[i], 512), expected)) << lengths[i] << " by 512";
    expect_path(lengths[i] > 1, lengths[i] % 512 == 1);
  }

  session_->reset();
  std::vector<float> uneven;
  std::minstd_rand random(9);
  for (uint32_t at = 0; at < longest;) {
    const uint32_t size = std::min(longest - at, static_cast<uint32_t>(1 + random() % 1500));
    std::vector<uint32_t> wanted;
    for (const uint32_t row : rows) {
      if (row >= at && row < at + size) wanted.push_back(row - at);
    }
    const auto part = run_rows(*session_, std::span(tokens_).subspan(at, size), wanted, 0);
    uneven.insert(uneven.end(), part.begin(), part.end());
    at += size;
  }
  EXPECT_TRUE(same_bits(uneven, whole)) << "uneven chunks";

  session_->reset();
  EXPECT_TRUE(same_bits(step_rows(*session_, tokens_, rows), whole)) << "token by token";
  expect_path(false, true);
  EXPECT_TRUE(engine_->saturated().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Long, LongPrompts,
    testing::Values(LongCase{"llama-long", "f16", true}, LongCase{"llama-long", "bf16", true},
                    LongCase{"llama-long", "q8_0", true}, LongCase{"llama-long", "f32", false},
                    LongCase{"qwen3-long", "f16", true}, LongCase{"qwen3-long", "bf16", true},
                    LongCase{"qwen3-long", "q8_0", true}, LongCase{"qwen3-long", "f32", false}),
    [](const testing::TestParamInfo<LongCase>& it) {
      const std::string shape(it.param.shape);
      return shape.substr(0, shape.find('-')) + "_" + it.param.kv;
    });

}  // namespace
}  // namespace quern::test
