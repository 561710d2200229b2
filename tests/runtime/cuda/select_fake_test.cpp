// Selection on the GPU around its kernel, on the stand-in driver: what is launched and copied, what
// sessions get, refusals and failures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "models/error.h"
#include "runtime/generate.h"
#include "tests/runtime/cuda/toy_gpu.h"
#include "tests/support/selection.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;

class GpuSelect : public ToyGpuTest {
 protected:
  /// Feeds tokens, the session's first ones, and expects the candidates of the toy's logits.
  void expect_selected(Session& session, size_t begin, size_t count,
                       const SelectionRequest& request, uint32_t pieces = 0) {
    const Candidates found =
        session.select(part(begin, count), session.position(), request, pieces);
    EXPECT_EQ(session.position(), begin + count);
    const uint32_t width = session.selection_limits().vocabulary;
    const Candidates expected =
        sorted_candidates(toy_logits(part(0, begin + count), width), request);
    EXPECT_EQ(found.best, expected.best);
    EXPECT_EQ(found.not_finite, 0U);
    EXPECT_EQ(launches_of(session, "select"), 1U);
  }
  /// A prompt of two chunks, then two steps of which the second replays a graph.
  void select_all(Session& session) {
    session.select(part(0, 20), 0, {.count = 3});
    session.select(part(20, 1), 20, {.count = 40, .penalty = 1.5F, .seen = {1, 2}});
    session.select(part(21, 1), 21, {.count = 1});
  }
  void expect_sound(Session& session) {
    session.reset();
    expect_selected(session, 0, 20, {.count = 5});
    expect_selected(session, 20, 1, {.count = 5});
    expect_toy(session, part(0, 21), part(21, 1));
  }
};

TEST_F(GpuSelect, candidates_are_those_of_the_last_rows_logits) {
  const auto engine = load();
  const auto session = engine->new_session();
  const SelectionLimits limits = session->selection_limits();
  EXPECT_EQ(limits.candidates, std::min(256U, engine->plan().vocabulary));
  EXPECT_EQ(limits.vocabulary, engine->plan().vocabulary);
  expect_selected(*session, 0, 40, {.count = limits.candidates});
  std::vector<TokenId> seen;
  for (uint32_t id = 0; id < std::min(limits.seen, limits.vocabulary); ++id) {
    seen.push_back(static_cast<TokenId>(id));
  }
  expect_selected(*session, 40, 1, {.count = 7, .penalty = 1.25F, .seen = seen});
  expect_selected(*session, 41, 1, {.count = 1});  // nothing is left of the request before
  expect_selected(*session, 42, 9, {.count = 9}, 2);
}

TEST_F(GpuSelect, logits_are_copied_when_asked_for_and_only_then) {
  const auto engine = load();
  const auto session = engine->new_session(), other = engine->new_session();
  expect_selected(*session, 0, 3, {.count = 2});
  expect_toy(*session, part(0, 3), part(3, 1));
  EXPECT_EQ(launches_of(*session, "select"), 0U);
  expect_selected(*session, 4, 1, {.count = 2});
  expect_toy(*other, {}, part(9, 1));  // a session of its own graphs
  expect_toy(*session, part(0, 5), part(5, 1));
  const uint64_t captures = cuda_.calls("cuStreamBeginCapture_v2");
  for (size_t i = 6; i < 12; i += 2) {
    expect_selected(*session, i, 1, {.count = static_cast<uint32_t>(i)});
    EXPECT_EQ(launches_of(*session, "launch graph"), 1U);
    expect_toy(*session, part(0, i + 1), part(i + 1, 1));
  }
  EXPECT_EQ(cuda_.calls("cuStreamBeginCapture_v2"), captures);
}

TEST_F(GpuSelect, texts_are_those_that_all_logits_give) {
  const auto engine = load();
  const auto session = engine->new_session();
  const Tokenizer tokenizer = Tokenizer::from_metadata(engine->file().metadata());
  const uint32_t width = engine->plan().vocabulary;
  ASSERT_GT(width, 256U);
  const SamplingOptions all_options[] = {
      {},
      {.repeat_penalty = 1.3F, .repeat_window = 5},
      {.temperature = 5, .top_k = 40, .min_p = 0, .seed = 3},
      {.temperature = 5, .top_k = 40, .min_p = 0, .repeat_penalty = 1.3F, .seed = 4},
      {.temperature = 5, .top_k = 257, .seed = 5},  // more than are selected
      {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 6}};
  for (const SamplingOptions& options : all_options) {
    session->reset();
    const Generation text = generate(*session, tokenizer, part(0, 20), options, 12,
                                     [](std::optional<TokenId>, std::string_view) { return true; });
    const bool selects = options.temperature == 0 || options.top_k == 40;
    EXPECT_EQ(launches_of(*session, "select"), selects ? 1U : 0U);
    Sampler sampler(options);
    std::vector<TokenId> history(tokens_.begin(), tokens_.begin() + 20);
    for (const TokenId id : text.tokens) {
      ASSERT_EQ(sampler.sample(toy_logits(history, width), history, history.size()), id);
      history.push_back(id);
    }
    EXPECT_FALSE(text.tokens.empty());
  }
}

TEST_F(GpuSelect, requests_beyond_the_limits_are_refused_and_change_nothing) {
  const auto engine = load();
  const auto session = engine->new_session();
  const SelectionLimits limits = session->selection_limits();
  const auto refusal = [&](const SelectionRequest& request) {
    return message_of([&] { session->select(part(0, 2), 0, request); });
  };
  EXPECT_THAT(refusal({.count = 0}), HasSubstr("0 candidates: the device selects 1 to 256"));
  EXPECT_THAT(refusal({.count = limits.candidates + 1}), HasSubstr("take their logits"));
  EXPECT_THAT(refusal({.count = 1, .seen = std::vector<TokenId>(limits.seen + 1, 0)}),
              HasSubstr("1025 seen tokens: the device takes 1024"));
  EXPECT_THAT(refusal({.count = 1, .seen = {-1}}), HasSubstr("seen token -1"));
  EXPECT_THAT(refusal({.count = 1, .seen = {static_cast<TokenId>(limits.vocabulary)}}),
              HasSubstr("the vocabulary does not have it"));
  EXPECT_THAT(message_of([&] { session->select({}, 0, {.count = 1}); }), HasSubstr("empty"));
  EXPECT_EQ(session->position(), 0U);
  expect_selected(*session, 0, 2, {.count = 1});
}

TEST_F(GpuSelect, a_plan_without_the_step_gives_logits) {
  Plan plan = plan_for_gpu(model_, context, chunk);
  plan.steps.pop_back();
  const auto engine = load(model_, plan);
  const auto session = engine->new_session();
  EXPECT_EQ(session->selection_limits().candidates, 0U);
  EXPECT_THAT(message_of([&] { session->select(part(0, 2), 0, {.count = 1}); }),
              HasSubstr("the device gives logits alone"));
  expect_toy(*session, {}, part(0, 20));
}

TEST_F(GpuSelect, a_failure_at_any_launch_latches_until_reset_and_others_live_on) {
  const auto engine = load();
  const auto session = engine->new_session(), other = engine->new_session();
  const uint64_t before = cuda_.launches();
  select_all(*session);
  const uint64_t launches = cuda_.launches() - before;
  ASSERT_GT(launches, 3 * engine->plan().steps.size());
  for (uint64_t at = 0; at < launches; ++at) {
    SCOPED_TRACE(at);
    session->reset();
    cuda_.fail_launch(at, cuda_launch_failed, at % 2 == 0 ? Failing::at_once : Failing::later);
    EXPECT_THAT(message_of([&] { select_all(*session); }), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
    ASSERT_TRUE(cuda_.faults_happened());
    const uint32_t position = session->position();
    EXPECT_THAT(message_of([&] { session->select(part(0, 1), position, {.count = 1}); }),
                HasSubstr("an earlier call failed"));
    other->reset();
    expect_selected(*other, 0, 3, {.count = 2});
    expect_sound(*session);
  }
}

TEST_F(GpuSelect, a_failure_of_any_driver_call_is_an_error_and_leaves_no_trace) {
  const auto engine = load();
  uint64_t at = 0;
  for (bool happened = true; happened; ++at) {
    SCOPED_TRACE(at);
    cuda_.fail_call(nullptr, at, cuda_launch_failed);
    std::unique_ptr<Session> session;
    const std::string message = message_of([&] {
      session = engine->new_session();
      select_all(*session);
    });
    happened = cuda_.faults_happened();
    cuda_.clear_faults();
    EXPECT_THAT(message, HasSubstr(happened ? "CUDA_ERROR_LAUNCH_FAILED" : "no error"));
    if (session != nullptr) expect_sound(*session);
    if (HasFailure()) break;
  }
  EXPECT_GT(at, 3 * engine->plan().steps.size());
}

}  // namespace
}  // namespace quern::test
