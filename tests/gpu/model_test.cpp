// Whole models on the GPU against the golden logits (DESIGN section 9), the bits of section 4, and
// what a session promises.

#include <gtest/gtest.h>

#include "runtime/cuda/cublas_lt.h"
#include "runtime/test_hooks.h"
#include "tests/gpu/support/engine.h"
#include "tests/support/selection.h"

namespace quern::test {
namespace {

struct Fixture {
  const char* name;
  double bar = 4e-3;
  bool flash = true;  ///< Head dims that flash attention has kernels for.
};

void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.name;
}

std::string case_name(const testing::TestParamInfo<Fixture>& info) {
  return case_name_of(info.param.name);
}

class GpuModelTest : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    QUERN_NEED_GPU();
    const std::string stem = std::string("fixtures/") + GetParam().name;
    const auto model = shared_file(stem + ".gguf");
    const auto golden = shared_file(stem + ".golden.gguf");
    if (!model || !golden) GTEST_SKIP() << missing_shared(stem + ".gguf");
    model_ = *model;
    golden_ = load_golden(*golden);
    rows_ = golden_rows(golden_);
    engine_ = load_on_gpu(*model, gpu_options(n_tokens()));
    session_ = engine_->new_session();
  }

  uint32_t n_tokens() const { return static_cast<uint32_t>(golden_.token_ids.size()); }
  /// Which attention kernels the last feed ran: those of the plan's path alone.
  void expect_attention(bool prefill, bool decode) const {
    const bool flash = GetParam().flash;
    EXPECT_EQ(launches(*session_, "attention flash") > 0, flash && prefill);
    EXPECT_EQ(launches(*session_, "attention flash decode") > 0, flash && decode);
    EXPECT_EQ(launches(*session_, "attention wave") > 0, !flash);
  }

  std::filesystem::path model_;
  Golden golden_;
  std::vector<uint32_t> rows_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
};

TEST_P(GpuModelTest, logits_meet_the_bar_and_no_bit_depends_on_chunking) {
  const auto whole = run_rows(*session_, golden_.token_ids, rows_, 512);
  expect_attention(true, false);
  ASSERT_EQ(whole.size(), golden_.logits.size());
  const Deviation found = deviation(whole, golden_);
  EXPECT_LE(found.relative, GetParam().bar);
  EXPECT_EQ(found.wrong_argmax, 0U);
  RecordProperty("relative_error", std::to_string(found.relative));
  EXPECT_TRUE(engine_->saturated().empty()) << engine_->saturated().front().first;

  for (const uint32_t chunk : {1U, 7U, 16U, 48U}) {
    session_->reset();
    EXPECT_TRUE(same_bits(run_rows(*session_, golden_.token_ids, rows_, chunk), whole))
        << "chunk " << chunk;
    expect_attention(chunk > 1, chunk == 1 || n_tokens() % chunk == 1);
  }
  session_->reset();
  EXPECT_TRUE(same_bits(step_rows(*session_, golden_.token_ids, rows_), whole)) << "step";
  EXPECT_EQ(launches(*session_, "launch graph"), 1U);
  expect_attention(false, true);
}

TEST_P(GpuModelTest, a_saved_restored_or_branched_session_goes_on_with_the_same_bits) {
  expect_states_to_move(*engine_, *session_, golden_.token_ids);
}

/// The golden tokens with others behind them, which they do not see, so that a chunk has 512.
TEST_P(GpuModelTest, fast_numerics_meet_the_bar_through_cublaslt) {
  if (const std::string problem = cuda::CublasLt::problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  std::vector<TokenId> tokens = golden_.token_ids;
  while (tokens.size() < 512) tokens.push_back(golden_.token_ids[tokens.size() % n_tokens()]);
  PlanOptions options = gpu_options(static_cast<uint32_t>(tokens.size()));
  options.numerics = Numerics::fast;
  const auto fast = load_on_gpu(model_, options);
  const auto session = fast->new_session();
  const auto logits = run_rows(*session, tokens, rows_, 512);
  EXPECT_GT(launches(*session, "cublasLt gemm"), 0U);
  EXPECT_GT(launches(*session, "unpack"), 0U);
  const Deviation found = deviation(logits, golden_);
  EXPECT_LE(found.relative, GetParam().bar);
  EXPECT_EQ(found.wrong_argmax, 0U);
  RecordProperty("relative_error", std::to_string(found.relative));

  // Launches of few tokens are exact: the bits of the exact plan.
  session->reset();
  const auto first = std::span(golden_.token_ids).first(40);
  const std::vector<uint32_t> last = {39};
  const auto few = run_rows(*session, first, last, 0);
  EXPECT_EQ(launches(*session, "cublasLt gemm"), 0U);
  EXPECT_TRUE(same_bits(few, run_rows(*session_, first, last, 0)));

  // With weights that are kept decoded, and fewer rows that count as few.
  options.free_bytes = uint64_t{1} << 40;
  const auto keeping = load_on_gpu(model_, options);
  const auto other = keeping->new_session();
  EXPECT_LE(deviation(run_rows(*other, tokens, rows_, 512), golden_).relative, GetParam().bar);
  EXPECT_GT(launches(*other, "cublasLt gemm"), 0U);
  EXPECT_EQ(launches(*other, "unpack"), 0U);
}

TEST_P(GpuModelTest, candidates_are_those_of_the_logits) {
  const std::span<const TokenId> tokens = golden_.token_ids;
  const auto other = engine_->new_session();
  const SelectionLimits limits = session_->selection_limits();
  const std::vector<TokenId> seen(tokens.begin(), tokens.begin() + 1);
  // A prompt, a token whose launches are recorded, tokens whose launches are replayed.
  for (const auto& [begin, count] : {std::pair{0U, 9U}, {9U, 1U}, {10U, 1U}, {11U, 1U}}) {
    const SelectionRequest request{.count = std::min(limits.candidates, 1 + 40 * begin),
                                   .penalty = begin % 2 == 0 ? 1.0F : 1.3F,
                                   .seen = begin % 2 == 0 ? std::vector<TokenId>() : seen};
    const auto part = tokens.subspan(begin, count);
    const auto logits = session_->feed(part, begin, OutputRows::last);
    EXPECT_EQ(launches(*session_, "select"), 0U);
    const Candidates found = other->select(part, begin, request);
    EXPECT_EQ(launches(*other, "select"), 1U);
    EXPECT_EQ(found.best, sorted_candidates(logits, request).best);
    EXPECT_EQ(found.not_finite, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dense, GpuModelTest,
    testing::Values(Fixture{"llama"}, Fixture{"llama3"}, Fixture{"qwen2"}, Fixture{"qwen3"},
                    Fixture{"gemma3"}, Fixture{"quant/llama-q4_0", 1e-2},
                    Fixture{"quant/llama-q4_k_m", 1e-2}, Fixture{"quant/llama-q8_0", 1e-2},
                    Fixture{"variants/llama-linear", 1e-2}, Fixture{"variants/llama-yarn", 1e-2},
                    Fixture{"variants/qwen3-fused-qkv", 1e-2}, Fixture{"wide/llama", 1e-2},
                    Fixture{"wide/qwen3", 1e-2}),
    case_name);

/// An injected failure at every launch of a prefill and of a decode step.
TEST(GpuSession, a_failure_at_any_launch_latches_until_reset_and_others_live_on) {
  QUERN_NEED_GPU();
  const Golden golden = load_golden(data_file("fixtures/llama.golden.gguf"));
  const std::span<const TokenId> tokens = golden.token_ids;
  const auto engine = load_on_gpu(data_file("fixtures/llama.gguf"), gpu_options(64, 16));
  const auto session = engine->new_session(), other = engine->new_session();
  const auto expected = session->feed(tokens.first(12), 0, OutputRows::last);
  const auto next = session->feed(tokens.subspan(12, 1), 12, OutputRows::last);
  const auto steps = static_cast<int64_t>(engine->plan().steps.size());
  for (int64_t at = 0; at < 2 * steps; ++at) {
    session->reset();
    if (at >= steps) session->feed(tokens.first(12), 0, OutputRows::none);
    fail_at_launch = at % steps;
    const uint32_t start = session->position();
    const auto part = at < steps ? tokens.first(12) : tokens.subspan(12, 1);
    EXPECT_THROW(session->feed(part, start, OutputRows::last), Error) << at;
    fail_at_launch = -1;
    EXPECT_THROW(session->feed(part, start, OutputRows::last), Error) << at;
    EXPECT_THROW(session->save(), Error) << at;
    EXPECT_THROW(session->branch(), Error) << at;
    other->reset();
    EXPECT_TRUE(same_bits(other->feed(tokens.first(12), 0, OutputRows::last), expected)) << at;
    session->reset();
    EXPECT_TRUE(same_bits(session->feed(tokens.first(12), 0, OutputRows::last), expected)) << at;
    EXPECT_TRUE(same_bits(session->feed(tokens.subspan(12, 1), 12, OutputRows::last), next)) << at;
  }
}

TEST(GpuSession, memory_is_what_the_plan_says) {
  QUERN_NEED_GPU();
  struct Case {
    const char* fixture;
    uint32_t context, chunk;
    const char* kv;
    bool all_logits;
    Numerics numerics = Numerics::exact;
  };
  const Case cases[] = {{"llama", 512, 512, "f16", false},
                        {"llama", 65536, 512, "f16", true},
                        {"llama", 65536, 8192, "f32", false},
                        {"qwen3", 32768, 2048, "q8_0", false},
                        {"gemma3", 32768, 2048, "f16", false},
                        {"qwen2", 16384, 16384, "bf16", true},
                        {"llama3", 65536, 4096, "f16", true},
                        {"quant/llama-q4_k_m", 4096, 2048, "f16", false},
                        {"quant/llama-q8_0", 512, 1, "f16", false},
                        {"quant/llama-q4_0", 65536, 16384, "q8_0", true},
                        {"quant/llama-q4_k_m", 4096, 2048, "f16", false, Numerics::fast}};
  for (const Case& c : cases) {
    const std::string name = std::string("fixtures/") + c.fixture + ".gguf";
    const auto path = shared_file(name);
    ASSERT_TRUE(path) << missing_shared(name);
    const gguf::File probe = gguf::File::open(*path);
    const uint32_t context = std::min(c.context, build_graph(probe).context_length);
    PlanOptions options = gpu_options(context, std::min(c.chunk, context), c.kv);
    options.all_logits = c.all_logits;
    options.numerics = c.numerics;
    const uint64_t before = gpu()->memory().free_bytes;
    uint64_t least = before;
    const auto look = [&] { least = std::min(least, gpu()->memory().free_bytes); };
    const auto engine =
        load_on_gpu(*path, options, [&](std::string_view, uint64_t, uint64_t) { look(); });
    const auto session = engine->new_session();
    const std::vector<TokenId> tokens(options.chunk, 3);
    session->feed(tokens, 0, OutputRows::last);
    look();
    const auto measured = static_cast<double>(before - least);
    const auto planned = static_cast<double>(engine->plan().capacity.total());
    EXPECT_NEAR(measured, planned, std::max(0.03 * measured, 256.0 * (1 << 20)))
        << c.fixture << " at " << context;
  }
}

}  // namespace
}  // namespace quern::test
