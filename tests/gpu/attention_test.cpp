// Attention of the mma tier: flash prefill and decode against double precision over what the cache
// holds and against each other, bit for bit; wave attention the same way. Deliberately wrong
// variants must fail the comparison.

#include "tests/gpu/support/attention_case.h"

namespace quern::test {
namespace {

using spec::AttentionSpec;
using spec::KvType;

// Over the standard deviation of the outputs, beyond the rounding of the f16 output: what f16
// probabilities cost, and f32 sums.
constexpr double flash_bar = 2e-3, wave_bar = 3e-5;

struct Problem {
  std::string name;
  AttentionSpec spec;
  uint32_t start, tokens;
};
std::ostream& operator<<(std::ostream& out, const Problem& run) {
  return out << run.name << " at " << run.start;
}

AttentionSpec with_window(uint32_t window) {
  AttentionSpec s = flash_spec();
  s.window = window;
  return s;
}
AttentionSpec with_cache(KvType kv) {
  AttentionSpec s = flash_spec();
  s.kv = kv;
  return s;
}
AttentionSpec with_softcap() {
  AttentionSpec s = flash_spec(256);
  s.softcap = 2;
  return s;
}
/// 9 heads of 80: an operand that ends inside a slab.
AttentionSpec with_gate(AttentionSpec s) {
  s.n_head = 9, s.n_head_kv = 3, s.q_row_width = 9 * s.head_dim;
  s.q_offset = 0;
  s.gate = 1, s.gate_row_width = 9 * s.head_dim + 13, s.gate_offset = 5;
  return s;
}

std::vector<Problem> flash_runs() {
  std::vector<Problem> runs;
  for (const auto& [start, tokens] : {std::pair{0u, 3u},
                                      {0u, 64u},
                                      {100u, 17u},
                                      {3000u, 40u},
                                      {4090u, 6u},
                                      {5000u, 64u},
                                      {24000u, 40u}}) {
    runs.push_back({"128", flash_spec(), start, tokens});
  }
  runs.push_back({"window_64", with_window(64), 100, 17});
  runs.push_back({"window_64", with_window(64), 3000, 40});
  runs.push_back({"window_512", with_window(512), 3000, 40});
  runs.push_back({"window_512", with_window(512), 900, 140});
  for (const uint32_t dim : {32u, 64u, 80u, 96u})
    runs.push_back({std::to_string(dim), flash_spec(dim), 1000, 70});
  runs.push_back({"256", flash_spec(256), 2030, 40});
  runs.push_back({"bf16", with_cache(KvType::bf16), 1000, 50});
  runs.push_back({"q8_0", with_cache(KvType::q8_0), 1000, 50});
  runs.push_back({"softcap", with_softcap(), 300, 20});
  runs.push_back({"gate", with_gate(flash_spec(80)), 300, 20});
  return runs;
}

std::vector<Problem> wave_runs() {
  std::vector<Problem> runs;
  for (const auto& [start, tokens] :
       {std::pair{0u, 3u}, {100u, 17u}, {5000u, 64u}, {24000u, 40u}}) {
    runs.push_back({"128", wave_spec(), start, tokens});
  }
  AttentionSpec s = wave_spec();
  s.window = 512;
  runs.push_back({"window_512", s, 3000, 40});
  for (const KvType kv : {KvType::f16, KvType::bf16, KvType::q8_0}) {
    s = wave_spec();
    s.kv = kv;
    runs.push_back({"cache_" + std::to_string(static_cast<uint32_t>(kv)), s, 1000, 50});
  }
  s = wave_spec(72);
  s.value_dim = 40, s.softcap = 3;
  runs.push_back({"dims_72_and_40", s, 300, 20});
  runs.push_back({"gate", with_gate(wave_spec(50)), 300, 20});
  return runs;
}

void compile_all() {
  static const bool once = [] {
    std::vector<spec::AnySpec> specs;
    for (const Problem& run : flash_runs())
      specs.emplace_back(run.spec), specs.emplace_back(decode_of(run.spec));
    for (const Problem& run : wave_runs()) specs.emplace_back(run.spec);
    precompile(specs);
    return true;
  }();
  static_cast<void>(once);
}

/// Chunks of 1, a third and the rest.
std::vector<uint32_t> uneven(uint32_t tokens) {
  if (tokens < 3) return std::vector<uint32_t>(tokens, 1);
  const uint32_t third = tokens / 3;
  std::vector<uint32_t> chunks{1, third};
  if (tokens > 1 + third) chunks.push_back(tokens - 1 - third);
  return chunks;
}

class Flash : public testing::TestWithParam<Problem> {};

TEST_P(Flash, bits_do_not_depend_on_chunking_or_on_the_kernel) {
  QUERN_NEED_GPU();
  compile_all();
  const Problem& run = GetParam();
  AttentionCase c(run.spec, run.start, run.tokens);
  const std::vector<uint16_t> whole = c.run({run.tokens});
  const double error = c.error(whole);
  EXPECT_LT(error, flash_bar);
  EXPECT_EQ(c.saturated(), 0u);
  RecordProperty("error", std::to_string(error));
  std::printf("flash %s (%u, %u): error %.2e\n", run.name.c_str(), run.start, run.tokens, error);
  EXPECT_TRUE(c.run(uneven(run.tokens)) == whole) << "uneven chunks";
  EXPECT_TRUE(c.run(std::vector<uint32_t>(run.tokens, 1)) == whole) << "prefill, token by token";
  EXPECT_TRUE(c.run_decode() == whole) << "decode";
}
INSTANTIATE_TEST_SUITE_P(All, Flash, testing::ValuesIn(flash_runs()));

class Wave : public testing::TestWithParam<Problem> {};

TEST_P(Wave, bits_do_not_depend_on_chunking_or_on_scratch) {
  QUERN_NEED_GPU();
  compile_all();
  const Problem& run = GetParam();
  AttentionCase c(run.spec, run.start, run.tokens);
  const std::vector<uint16_t> whole = c.run({run.tokens});
  const double error = c.error(whole);
  EXPECT_LT(error, wave_bar);
  EXPECT_EQ(c.saturated(), 0u);
  std::printf("wave %s (%u, %u): error %.2e\n", run.name.c_str(), run.start, run.tokens, error);
  EXPECT_TRUE(c.run(uneven(run.tokens)) == whole) << "uneven chunks";
  EXPECT_TRUE(c.run(std::vector<uint32_t>(run.tokens, 1)) == whole) << "token by token";
  EXPECT_TRUE(c.run({run.tokens}, nullptr, 1u << 20) == whole) << "a scratch of 1 MB";
}
INSTANTIATE_TEST_SUITE_P(All, Wave, testing::ValuesIn(wave_runs()));

/// A wrong variant of a kernel: `from` of `header` replaced by `to`, at a case where it shows.
struct Mutant {
  std::string name, header, from, to;
  AttentionSpec spec;
  uint32_t start, tokens;
};

std::vector<Mutant> mutants() {
  const std::string folder = "templates/cuda/attention/";
  const std::string block = folder + "block.cuh", prefill = folder + "prefill.cuh",
                    decode = folder + "decode.cuh", wave = folder + "wave.cuh",
                    softmax = folder + "softmax.cuh";
  AttentionSpec window_wave = wave_spec();
  window_wave.window = 64;
  std::vector<Mutant> list;
  for (const bool one : {false, true}) {
    const std::string kernel = one ? "decode_" : "prefill_";
    auto spec = [&](AttentionSpec s) { return one ? decode_of(s) : s; };
    list.push_back({kernel + "causal_without_itself", block, "key <= query", "key < query",
                    spec(flash_spec()), 20, 20});
    list.push_back({kernel + "window_one_longer", block, "query - key < static_cast<int>(s.window)",
                    "query - key <= static_cast<int>(s.window)", spec(with_window(64)), 100, 17});
    list.push_back({kernel + "sums_not_rescaled", softmax, "fmaf(row.sum[h], factor[h], sum)",
                    "row.sum[h] + sum", spec(flash_spec()), 1000, 20});
    list.push_back({kernel + "segment_maximum_ignored", softmax,
                    "decay(segment_maximum, top, scale)}", "1.0f}", spec(flash_spec()), 3000, 5});
  }
  list.push_back({"prefill_base_position_dropped", prefill, "(start + a.token[h])", "(a.token[h])",
                  flash_spec(), 100, 17});
  list.push_back({"prefill_head_map", prefill, "head / (s.n_head / s.n_head_kv)",
                  "head % s.n_head_kv", flash_spec(), 0, 20});
  list.push_back({"prefill_parked_output_dropped", prefill, "low = fold_value(before.x, low, f)",
                  "low = fold_value(0.0f, low, f)", flash_spec(), 3000, 5});
  list.push_back({"decode_base_position_dropped", decode, "position = args.state->start_position;",
                  "position = args.state->start_position / 2;", decode_of(flash_spec()), 100, 5});
  list.push_back({"decode_first_segment_dropped", decode, "u32 segment = first; segment <= last",
                  "u32 segment = first + 1; segment <= last", decode_of(flash_spec()), 3000, 5});
  list.push_back({"wave_causal_without_itself", wave, "key <= position", "key < position",
                  wave_spec(), 20, 20});
  list.push_back({"wave_window_one_longer", wave, "position - key < s.window",
                  "position - key <= s.window", window_wave, 100, 17});
  list.push_back({"wave_scale_off_by_a_ten_thousandth", wave, "c[r] * s.scale",
                  "c[r] * (s.scale * 1.0001f)", wave_spec(), 100, 17});
  list.push_back({"wave_base_position_dropped", wave,
                  "position0 = args.state->start_position + token0",
                  "position0 = args.state->start_position / 2 + token0", wave_spec(), 100, 17});
  return list;
}

TEST(AttentionMutants, fail_the_comparison) {
  QUERN_NEED_GPU();
  const std::vector<Mutant> list = mutants();
  std::vector<CompiledKernel> kernels(list.size());
  in_parallel(list.size(), [&](size_t i) {
    kernels[i] = compile_mutant(list[i].spec, list[i].header, list[i].from, list[i].to);
  });
  for (size_t i = 0; i < list.size(); ++i) {
    const Mutant& m = list[i];
    const bool wave = m.spec.path == spec::AttentionPath::wave;
    AttentionCase c(m.spec, m.start, m.tokens);
    const std::vector<uint16_t> out =
        m.spec.decode != 0 ? c.run_decode(&kernels[i]) : c.run({m.tokens}, &kernels[i]);
    EXPECT_GT(c.error(out), wave ? wave_bar : flash_bar) << m.name;
  }
}

}  // namespace
}  // namespace quern::test
