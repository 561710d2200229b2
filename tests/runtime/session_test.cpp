// What a session promises beside its logits: refusals that change nothing, the failure latch,
// turns.

#include <gtest/gtest.h>

#include <cctype>
#include <thread>

#include "models/error.h"
#include "runtime/test_hooks.h"
#include "tests/runtime/model_support.h"

namespace quern::test {
namespace {

class SessionTest : public testing::Test {
 protected:
  static constexpr uint32_t kContext = 64;

  void SetUp() override {
    golden_ = load_golden(data_file("fixtures/llama.golden.gguf"));
    engine_ = load_fixture(data_file("fixtures/llama.gguf"), test_options(kContext, 16));
    session_ = engine_->new_session();
  }
  void TearDown() override {
    fail_at_launch = -1;
    after_cpu_step = nullptr;
  }

  std::span<const TokenId> tokens(size_t first, size_t count) const {
    return std::span(golden_.token_ids).subspan(first, count);
  }

  template <class Call>
  static void expect_error(ErrorKind kind, std::string_view part, Call&& call) {
    try {
      call();
      ADD_FAILURE() << "no error with \"" << part << "\"";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
    }
  }

  Golden golden_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionTest, an_observer_sees_every_step_in_order_and_changes_no_bit) {
  const auto plain = session_->feed(tokens(0, 24), 0, OutputRows::last);
  session_->reset();
  const Plan& plan = engine_->plan();
  std::vector<size_t> seen;
  bool found_logits = false;
  std::vector<float> logits(plan.vocabulary);
  after_cpu_step = [&](const FinishedStep& step) {
    const bool tokens = plan.steps[step.step].rows == StepRows::tokens;
    EXPECT_EQ(step.rows, !tokens ? 1U : step.start_position == 0 ? 16U : 8U);
    seen.push_back(step.step);
    const auto& buffers = plan.steps[step.step].buffers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].kind != BufferKind::logits) continue;
      std::memcpy(logits.data(), step.buffers[i], logits.size() * sizeof(float));
      found_logits = true;
    }
  };
  const auto observed = session_->feed(tokens(0, 24), 0, OutputRows::last);
  after_cpu_step = nullptr;
  EXPECT_TRUE(same_bits(observed, plain));
  EXPECT_TRUE(found_logits);
  EXPECT_TRUE(same_bits(logits, plain));
  // Two chunks, the first without the steps of outputs.
  std::vector<size_t> expected;
  for (const bool last : {false, true}) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      if (last || plan.steps[i].rows == StepRows::tokens) expected.push_back(i);
    }
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(SessionTest, refusals_change_nothing) {
  const auto plain = session_->feed(tokens(0, 8), 0, OutputRows::last);
  session_->reset();
  session_->feed(tokens(0, 5), 0, OutputRows::none);
  const auto feed = [&](std::span<const TokenId> ids, uint32_t start) {
    session_->feed(ids, start, OutputRows::last);
  };
  expect_error(ErrorKind::usage, "stands at 5", [&] { feed(tokens(5, 3), 0); });
  expect_error(ErrorKind::usage, "stands at 5", [&] { feed(tokens(5, 3), 6); });
  expect_error(ErrorKind::usage, "empty", [&] { feed({}, 5); });
  expect_error(ErrorKind::usage, "room for 59", [&] { feed(std::vector<TokenId>(60, 1), 5); });
  const auto vocabulary = static_cast<TokenId>(engine_->plan().vocabulary);
  for (const TokenId id : {TokenId{-1}, vocabulary, TokenId{2'000'000'000}}) {
    expect_error(ErrorKind::usage, "vocabulary", [&] { feed(std::vector<TokenId>{1, id}, 5); });
  }
  const std::vector<uint32_t> unsorted = {2, 1};
  const std::vector<uint32_t> beyond = {3};
  for (const auto& rows : {unsorted, beyond}) {
    expect_error(ErrorKind::usage, "ascend", [&] {
      session_->feed(tokens(5, 3), 5, rows, 0, [](uint32_t, std::span<const float>) {});
    });
  }
  EXPECT_EQ(session_->position(), 5U);
  EXPECT_TRUE(same_bits(session_->feed(tokens(5, 3), 5, OutputRows::last), plain));
}

TEST_F(SessionTest, the_cpu_selects_no_candidates_and_says_so) {
  EXPECT_EQ(session_->selection_limits().candidates, 0U);
  expect_error(ErrorKind::usage, "the device gives logits alone",
               [&] { session_->select(tokens(0, 3), 0, {.count = 1}); });
  EXPECT_EQ(session_->position(), 0U);
  session_->feed(tokens(0, 3), 0, OutputRows::last);
}

TEST_F(SessionTest, the_whole_context_can_be_filled_and_then_no_more) {
  session_->feed(std::vector<TokenId>(kContext, 3), 0, OutputRows::none);
  EXPECT_EQ(session_->position(), session_->capacity());
  expect_error(ErrorKind::usage, "room for 0",
               [&] { session_->feed(tokens(0, 1), kContext, OutputRows::last); });
}

TEST_F(SessionTest, rows_come_in_order_whatever_the_chunks) {
  const auto all = session_->feed(tokens(0, 40), 0, OutputRows::all);
  const size_t width = engine_->plan().vocabulary;
  ASSERT_EQ(all.size(), 40 * width);
  const std::vector<uint32_t> rows = {0, 15, 16, 31, 39};
  for (const uint32_t chunk : {0U, 3U, 1000U}) {
    session_->reset();
    std::vector<uint32_t> seen;
    session_->feed(tokens(0, 40), 0, rows, chunk, [&](uint32_t row, std::span<const float> logits) {
      seen.push_back(row);
      EXPECT_TRUE(same_bits(logits, std::span(all).subspan(row * width, width)));
    });
    EXPECT_EQ(seen, rows);
  }
  session_->reset();
  EXPECT_TRUE(same_bits(session_->feed(tokens(0, 40), 0, OutputRows::last),
                        std::span(all).subspan(39 * width)));
  EXPECT_TRUE(session_->feed(tokens(40, 4), 40, OutputRows::none).empty());
}

TEST_F(SessionTest, a_plan_for_one_row_gives_every_row_only_by_cutting_chunks) {
  PlanOptions options = test_options(kContext, 16);
  options.all_logits = false;
  const auto engine = load_fixture(data_file("fixtures/llama.gguf"), options);
  const auto session = engine->new_session();
  expect_error(ErrorKind::usage, "all_logits",
               [&] { session->feed(tokens(0, 8), 0, OutputRows::all); });
  EXPECT_EQ(session->position(), 0U);
  const auto expected = session_->feed(tokens(0, 20), 0, OutputRows::all);
  const std::vector<uint32_t> rows = {2, 3, 19};
  const auto few = run_rows(*session, tokens(0, 20), rows, 0);
  const size_t width = engine->plan().vocabulary;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(same_bits(std::span(few).subspan(i * width, width),
                          std::span(expected).subspan(rows[i] * width, width)));
  }
}

TEST_F(SessionTest, a_failure_at_any_launch_latches_until_reset) {
  const auto plain = session_->feed(tokens(0, 20), 0, OutputRows::last);
  const auto launches = static_cast<int64_t>(engine_->plan().steps.size());
  const auto image = session_->save();
  for (int64_t at = 0; at < 2 * launches; at += 1 + launches / 7) {
    session_->reset();
    fail_at_launch = at;
    expect_error(ErrorKind::failed, "a test made it fail",
                 [&] { session_->feed(tokens(0, 20), 0, OutputRows::last); });
    const auto latched = [&](auto&& call) {
      expect_error(ErrorKind::failed, "an earlier call failed", call);
    };
    latched([&] { session_->feed(tokens(0, 1), session_->position(), OutputRows::last); });
    latched([&] { session_->feed(tokens(0, 1), 0, OutputRows::last); });
    latched([&] { (void)session_->branch(); });
    latched([&] { (void)session_->save(); });
    latched([&] { session_->restore(image); });
    session_->reset();
    EXPECT_EQ(session_->position(), 0U);
    EXPECT_TRUE(same_bits(session_->feed(tokens(0, 20), 0, OutputRows::last), plain)) << at;
  }
}

TEST_F(SessionTest, a_callback_that_throws_latches_too) {
  const std::vector<uint32_t> rows = {0};
  EXPECT_THROW(session_->feed(
                   tokens(0, 4), 0, rows, 0,
                   [](uint32_t, std::span<const float>) { throw std::runtime_error("callback"); }),
               std::runtime_error);
  expect_error(ErrorKind::failed, "callback",
               [&] { session_->feed(tokens(4, 1), 4, OutputRows::last); });
}

TEST_F(SessionTest, a_damaged_or_foreign_image_is_refused_and_changes_nothing) {
  session_->feed(tokens(0, 9), 0, OutputRows::none);
  const auto image = session_->save();
  const auto branch = session_->branch();
  const auto expected = branch->feed(tokens(9, 1), 9, OutputRows::last);
  for (size_t at = 0; at < image.size(); at += 1 + image.size() / 97) {
    auto bad = image;
    bad[at] ^= std::byte{4};
    EXPECT_THROW(session_->restore(bad), Error) << at;
    EXPECT_THROW(session_->restore(std::span(image).first(at)), Error) << at;
  }
  const auto other = load_fixture(data_file("fixtures/llama.gguf"), test_options(128, 16));
  expect_error(ErrorKind::failed, "another plan", [&] { other->new_session()->restore(image); });
  EXPECT_EQ(session_->position(), 9U);
  EXPECT_TRUE(same_bits(session_->feed(tokens(9, 1), 9, OutputRows::last), expected));
}

TEST_F(SessionTest, an_image_is_as_large_as_what_was_fed_not_as_the_context) {
  const auto engine = load_fixture(data_file("fixtures/llama.gguf"), test_options(512, 16));
  const auto session = engine->new_session();
  session->feed(tokens(0, 9), 0, OutputRows::none);
  EXPECT_LT(session->save().size(), engine->plan().state_bytes / 4);
}

TEST_F(SessionTest, sessions_in_threads_take_turns_and_do_not_mix) {
  const auto expected = session_->feed(tokens(0, 40), 0, OutputRows::all);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto session = engine_->new_session();
      for (int round = 0; round < 3; ++round) {
        session->reset();
        const auto all =
            session->feed(tokens(0, 40), 0, OutputRows::all, static_cast<uint32_t>(1 + 5 * t));
        if (!same_bits(all, expected)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(SessionTest, the_launches_of_a_feed_are_told) {
  const auto count = [&](std::string_view name) -> uint32_t {
    uint32_t total = 0;
    for (const auto& [launch, n] : session_->last_launches()) {
      if (launch.starts_with(name)) total += n;
    }
    return total;
  };
  session_->feed(tokens(0, 32), 0, OutputRows::none);  // Two chunks.
  const auto layers = static_cast<uint32_t>(build_graph(engine_->file()).n_layers);
  EXPECT_EQ(count("attention"), 2 * layers);
  EXPECT_GT(count("gemm tiled"), 0U);
  EXPECT_EQ(count("gemm gemv"), 0U);
  EXPECT_EQ(count("embed"), 2U);
  const uint32_t without_head = count("gemm");
  session_->feed(tokens(32, 1), 32, OutputRows::last);
  EXPECT_EQ(count("gemm tiled"), 0U);
  EXPECT_GT(count("gemm gemv"), 0U);
  EXPECT_GT(count("gemm"), without_head / 2) << "the head runs where logits are wanted";
}

TEST_F(SessionTest, a_session_outlives_the_callers_hold_on_its_engine) {
  const auto expected = session_->feed(tokens(0, 4), 0, OutputRows::last);
  session_->reset();
  engine_.reset();
  EXPECT_TRUE(same_bits(session_->feed(tokens(0, 4), 0, OutputRows::last), expected));
}

TEST(EngineLoad, a_plan_of_another_model_is_refused_and_both_are_named) {
  const auto golden = data_file("fixtures/llama.gguf");
  Plan plan = plan_fixture(gguf::File::open(golden), test_options(64));
  gguf::File other = gguf::File::open(data_file("fixtures/llama3.gguf"));
  const std::string fingerprint = other.fingerprint();
  try {
    Engine::load(std::move(other), plan, test_store(), cpu::compile_kernel, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model);
    const std::string text = error.what();
    EXPECT_NE(text.find("llama3.gguf"), std::string::npos);
    EXPECT_NE(text.find(fingerprint.substr(0, 12)), std::string::npos);
    EXPECT_NE(text.find(plan.model_fingerprint.substr(0, 12)), std::string::npos);
  }
}

/// Loads the llama fixture with a plan that `change` has spoiled; the error's kind and text.
std::pair<ErrorKind, std::string> load_spoilt(const std::function<void(Plan&)>& change) {
  gguf::File file = gguf::File::open(data_file("fixtures/llama.gguf"));
  Plan plan = plan_fixture(file, test_options(64));
  change(plan);
  try {
    Engine::load(std::move(file), plan, test_store(), cpu::compile_kernel, {})->new_session();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {ErrorKind::failed, "no error"};
}

TEST(EngineLoad, a_target_that_this_machine_cannot_run_is_refused_with_a_remedy) {
  const auto [kind, text] = load_spoilt([](Plan& plan) { plan.target.features += ",+avx99"; });
  EXPECT_EQ(kind, ErrorKind::failed);
  EXPECT_NE(text.find("--target native"), std::string::npos) << text;
}

TEST(EngineLoad, memory_that_is_not_there_is_said_to_be_missing) {
  constexpr uint64_t huge = uint64_t{1} << 50;
  for (const auto& change :
       std::vector<std::function<void(Plan&)>>{[](Plan& plan) { plan.arena_bytes = huge; },
                                               [](Plan& plan) { plan.state_bytes = huge; }}) {
    const auto [kind, text] = load_spoilt(change);
    EXPECT_EQ(kind, ErrorKind::does_not_fit) << text;
    EXPECT_NE(text.find("GiB"), std::string::npos) << text;
  }
}

TEST(EngineLoad, weights_that_the_file_does_not_have_are_named) {
  const auto first_packed = [](Plan& plan) -> WeightSlice& {
    for (auto& binding : plan.weights) {
      if (binding.form == WeightForm::packed) return binding.slice;
    }
    throw std::runtime_error("no packed weight");
  };
  const std::vector<std::function<void(WeightSlice&)>> changes = {
      [](WeightSlice& slice) { slice.tensor += "_missing"; },
      [](WeightSlice& slice) { slice.k += 32; },
      [](WeightSlice& slice) {
        slice.rows += 16;
        slice.block = slice.stride = slice.rows;
      },
      [](WeightSlice& slice) { slice.offset = 1; },
      [](WeightSlice& slice) { slice.experts = 3; },
      [](WeightSlice& slice) { slice.type = QuantType::q8_0; },
      [](WeightSlice& slice) { slice.block = 0; },
      [](WeightSlice& slice) {
        slice.block = 1;
        slice.stride = 2;
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    std::string tensor;
    const auto [kind, text] = load_spoilt([&](Plan& plan) {
      changes[i](first_packed(plan));
      tensor = first_packed(plan).tensor;
    });
    EXPECT_EQ(kind, ErrorKind::bad_model) << i << ": " << text;
    EXPECT_NE(text.find(tensor), std::string::npos) << i << ": " << text;
  }
}

TEST(EngineLoad, a_stored_kernel_other_than_the_plan_lists_is_refused) {
  load_spoilt([](Plan&) {});  // Fills the store.
  const auto [kind, text] =
      load_spoilt([](Plan& plan) { plan.kernels[0].entry_digest = std::string(64, '0'); });
  EXPECT_EQ(kind, ErrorKind::failed);
  EXPECT_NE(text.find("not the one that the plan lists"), std::string::npos) << text;
}

TEST(EngineLoad, stages_report_progress_and_a_second_load_compiles_nothing) {
  KernelStore store({.directory = {}, .readonly_tiers = {}, .mode = StoreMode::off});
  for (int load = 0; load < 2; ++load) {
    gguf::File file = gguf::File::open(data_file("fixtures/llama.gguf"));
    Plan plan = plan_fixture(file, test_options(64));
    const auto n_kernels = static_cast<uint32_t>(plan.kernels.size());
    EngineOptions options;
    uint64_t compiled = 0;
    uint64_t weights = 0;
    options.progress = [&](std::string_view stage, uint64_t done, uint64_t total) {
      EXPECT_LE(done, total);
      if (stage == "compile") compiled = done;
      if (stage == "weights") weights = done;
    };
    const auto engine =
        Engine::load(std::move(file), std::move(plan), store, cpu::compile_kernel, options);
    EXPECT_EQ(compiled, load == 0 ? n_kernels : 0U);
    EXPECT_EQ(weights, engine->load_stats().weight_bytes);
    EXPECT_EQ(engine->load_stats().kernels_compiled, load == 0 ? n_kernels : 0U);
    EXPECT_EQ(engine->load_stats().kernels_loaded, load == 0 ? 0U : n_kernels);
  }
}

}  // namespace
}  // namespace quern::test
