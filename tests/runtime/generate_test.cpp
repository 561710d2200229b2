#include "runtime/generate.h"

#include <gtest/gtest.h>

#include "models/error.h"
#include "runtime/perplexity.h"
#include "tests/runtime/model_support.h"

namespace quern::test {
namespace {

class GenerateTest : public testing::Test {
 protected:
  static constexpr uint32_t kContext = 64;

  void SetUp() override {
    golden_ = load_golden(data_file("fixtures/llama.golden.gguf"));
    engine_ = load_fixture(data_file("fixtures/llama.gguf"), test_options(kContext, 16));
    session_ = engine_->new_session();
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::from_metadata(engine_->file().metadata()));
  }

  Generation run(std::span<const TokenId> prompt, const SamplingOptions& sampling,
                 std::optional<uint32_t> max_tokens) {
    session_->reset();
    return generate(*session_, *tokenizer_, prompt, sampling, max_tokens,
                    [](std::optional<TokenId>, std::string_view) { return true; });
  }
  std::span<const TokenId> prompt() const { return std::span(golden_.token_ids).first(10); }

  Golden golden_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(GenerateTest, greedy_tokens_are_the_argmax_of_what_was_fed) {
  const Generation result = run(prompt(), {}, 12);
  ASSERT_EQ(result.tokens.size(), 12U);
  EXPECT_EQ(result.stop, StopReason::length);
  EXPECT_EQ(result.prompt_tokens, 10U);
  EXPECT_EQ(result.steps, 11U);
  std::vector<TokenId> text(prompt().begin(), prompt().end());
  for (const TokenId id : result.tokens) {
    session_->reset();
    EXPECT_EQ(argmax(session_->feed(text, 0, OutputRows::last)), id);
    text.push_back(id);
  }
}

TEST_F(GenerateTest, a_seed_gives_the_same_text_again_and_another_seed_another) {
  SamplingOptions sampling{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5};
  const auto first = run(prompt(), sampling, 20).tokens;
  EXPECT_EQ(run(prompt(), sampling, 20).tokens, first);
  sampling.seed = 6;
  EXPECT_NE(run(prompt(), sampling, 20).tokens, first);
}

TEST_F(GenerateTest, a_draw_does_not_depend_on_how_the_prompt_was_split) {
  // Continuing by one more generation is the same as one long one: draws are keyed by position.
  const SamplingOptions sampling{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5};
  const auto whole = run(prompt(), sampling, 8).tokens;
  const auto part = run(prompt(), sampling, 3).tokens;
  const auto rest = generate(*session_, *tokenizer_, std::span(&part.back(), 1), sampling, 5,
                             [](std::optional<TokenId>, std::string_view) { return true; });
  auto joined = part;
  joined.insert(joined.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(joined, whole);
}

TEST_F(GenerateTest, a_full_context_ends_it_after_the_last_token_that_can_be_drawn) {
  const Generation result = run(prompt(), {}, std::nullopt);
  EXPECT_EQ(result.stop, StopReason::context_full);
  EXPECT_EQ(result.tokens.size(), kContext - prompt().size() + 1);
  EXPECT_EQ(session_->position(), kContext);
}

TEST_F(GenerateTest, the_receiver_can_stop_it_and_gets_a_last_call) {
  int calls = 0;
  bool ended = false;
  const Generation result = generate(*session_, *tokenizer_, prompt(), {}, 20,
                                     [&](std::optional<TokenId> token, std::string_view) {
                                       EXPECT_FALSE(ended);
                                       ended = !token;
                                       return ++calls < 3;
                                     });
  EXPECT_EQ(result.stop, StopReason::cancelled);
  EXPECT_EQ(result.tokens.size(), 3U);
  EXPECT_TRUE(ended);
}

TEST_F(GenerateTest, no_tokens_asked_for_are_none_and_an_empty_prompt_is_refused) {
  EXPECT_TRUE(run(prompt(), {}, 0).tokens.empty());
  EXPECT_THROW(run({}, {}, 5), Error);
}

TEST_F(GenerateTest, perplexity_scores_the_second_half_of_every_whole_window) {
  constexpr uint32_t kWindow = 20;
  std::vector<TokenId> text = golden_.token_ids;
  text.insert(text.end(), text.rbegin(), text.rend());  // 96 tokens: four windows and a tail.
  for (const std::optional<TokenId> bos : {std::optional<TokenId>(), std::optional<TokenId>(7)}) {
    const Perplexity found = measure_perplexity(*session_, text, kWindow, bos, {});
    double sum = 0;
    uint64_t count = 0;
    for (size_t window = 0; window < 4; ++window) {
      std::vector<TokenId> fed(text.begin() + static_cast<ptrdiff_t>(window * kWindow),
                               text.begin() + static_cast<ptrdiff_t>((window + 1) * kWindow));
      if (bos) fed[0] = *bos;
      session_->reset();
      for (size_t i = 0; i + 1 < kWindow; ++i) {
        const auto logits =
            session_->feed(std::span(&fed[i], 1), static_cast<uint32_t>(i), OutputRows::last);
        if (i < kWindow / 2) continue;
        double total = 0;
        for (const float l : logits) total += std::exp(static_cast<double>(l));
        sum += std::log(total) - static_cast<double>(logits[static_cast<size_t>(fed[i + 1])]);
        ++count;
      }
    }
    EXPECT_EQ(found.windows, 4U);
    EXPECT_EQ(found.scored, count);
    EXPECT_NEAR(found.value, std::exp(sum / static_cast<double>(count)), 1e-6 * found.value);
    EXPECT_GT(found.standard_error, 0);
  }
}

TEST_F(GenerateTest, perplexity_refuses_texts_and_windows_that_do_not_fit) {
  EXPECT_THROW(measure_perplexity(*session_, prompt(), 20, {}, {}), Error);
  EXPECT_THROW(measure_perplexity(*session_, golden_.token_ids, kContext + 1, {}, {}), Error);
  EXPECT_THROW(measure_perplexity(*session_, golden_.token_ids, 3, {}, {}), Error);
}

TEST(NegativeLogLikelihood, is_stable_for_large_logits_and_refuses_what_is_not_finite) {
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>{1e30F, 1e30F}, 0), std::log(2.0), 1e-12);
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>{0, 0, 0, 0}, 2), std::log(4.0), 1e-12);
  EXPECT_THROW(negative_log_likelihood(std::vector<float>{0, std::nanf("")}, 0), Error);
}

}  // namespace
}  // namespace quern::test
