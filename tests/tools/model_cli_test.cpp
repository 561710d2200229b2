// The quern command running models on the CPU: logits against the fixtures' own, equal bits
// whatever the chunking, the store's modes, bundles and trust, and real models where they are
// present.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include <nlohmann/json.hpp>

#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string fixture(const std::string& name) {
  return (data_file("fixtures") / name).string();
}

CommandOptions with_store(const std::filesystem::path& folder) {
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = folder.string();
  return options;
}

/// The numbers of "kernels: N compiled (…), M loaded (…)".
struct KernelCounts {
  int compiled = -1, loaded = -1;
};
KernelCounts kernel_counts(const std::string& stats) {
  std::smatch match;
  const std::regex line("kernels: +([0-9]+) compiled \\([^)]*\\), ([0-9]+) loaded");
  if (!std::regex_search(stats, match, line)) return {};
  return {std::stoi(match[1]), std::stoi(match[2])};
}

/// The fixture's logits through the command, with these extra flags.
std::string logits_bytes(const std::string& name, const std::vector<std::string>& flags) {
  const TemporaryFolder folder;
  const Golden golden = load_golden(fixture(name + ".golden.gguf"));
  const std::string out = (folder / "logits.npy").string();
  std::vector<std::string> arguments = {
      "logits", fixture(name + ".gguf"), "--tokens", id_list(golden.token_ids), "-o", out};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const CommandResult result = quern(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(folder.entries(), 1U);
  return read_text(out);
}

class LogitsOfFixture : public ::testing::TestWithParam<std::string> {};

TEST_P(LogitsOfFixture, are_within_the_bar_and_have_equal_bits_however_they_are_fed) {
  const TemporaryFolder folder;
  const std::string whole = logits_bytes(GetParam(), {});
  write_text(folder / "whole.npy", whole);
  const Npy npy = load_npy(folder / "whole.npy");
  const Golden golden = load_golden(fixture(GetParam() + ".golden.gguf"));
  ASSERT_EQ(npy.rows, golden.token_ids.size());
  ASSERT_EQ(npy.columns, golden.vocabulary);
  double sum = 0, squares = 0, worst = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    const double expected = golden.logits[i];
    sum += expected;
    squares += expected * expected;
    worst = std::max(worst, std::abs(expected - static_cast<double>(npy.values[i])));
  }
  const double n = static_cast<double>(golden.logits.size());
  EXPECT_LE(worst / std::sqrt(squares / n - sum / n * (sum / n)), 1e-4);

  EXPECT_EQ(logits_bytes(GetParam(), {"--step"}), whole) << "--step";
  for (const char* chunk : {"1", "7", "16", "48", "512"}) {
    EXPECT_EQ(logits_bytes(GetParam(), {"--chunk", chunk}), whole) << "--chunk " << chunk;
  }
  EXPECT_EQ(logits_bytes(GetParam(), {"--threads", "1"}), whole) << "--threads 1";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LogitsOfFixture,
                         ::testing::Values("llama", "llama3", "qwen2", "qwen3"),
                         [](const auto& test) { return test.param; });

TEST(Logits, positions_choose_rows) {
  const TemporaryFolder folder;
  write_text(folder / "all.npy", logits_bytes("llama", {}));
  write_text(folder / "some.npy", logits_bytes("llama", {"--positions", "0,5,47"}));
  write_text(folder / "step.npy", logits_bytes("llama", {"--positions", "0,5,47", "--step"}));
  const Npy all = load_npy(folder / "all.npy"), some = load_npy(folder / "some.npy");
  ASSERT_EQ(some.rows, 3U);
  const size_t positions[] = {0, 5, 47};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        std::equal(some.values.begin() + static_cast<ptrdiff_t>(i * some.columns),
                   some.values.begin() + static_cast<ptrdiff_t>((i + 1) * some.columns),
                   all.values.begin() + static_cast<ptrdiff_t>(positions[i] * all.columns)));
  }
  EXPECT_EQ(read_text(folder / "some.npy"), read_text(folder / "step.npy"));
}

TEST(Logits, the_token_list_may_come_from_a_file) {
  const TemporaryFolder folder;
  write_text(folder / "ids", "1 2\n3,4\n");
  const std::string from_file = (folder / "a.npy").string(), given = (folder / "b.npy").string();
  ASSERT_EQ(
      quern({"logits", fixture("llama.gguf"), "--tokens", at_file(folder / "ids"), "-o", from_file})
          .exit_code,
      0);
  ASSERT_EQ(quern({"logits", fixture("llama.gguf"), "--tokens", "1,2,3,4", "-o", given}).exit_code,
            0);
  EXPECT_EQ(read_text(from_file), read_text(given));
}

TEST(Logits, an_existing_file_is_replaced_only_by_a_whole_one) {
  const TemporaryFolder folder;
  const std::string out = (folder / "x.npy").string();
  write_text(out, "old");
  // The kernels are missing and may not be compiled: the failure comes after the file was opened.
  CommandOptions options = with_store(folder / "store");
  const CommandResult result = quern(
      {"logits", fixture("llama.gguf"), "--tokens", "1", "-o", out, "--store", "strict"}, options);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  EXPECT_EQ(read_text(out), "old");
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_THAT(file.path().filename().string(), Not(HasSubstr(".tmp-")));
  }
}

TEST(Run, greedy_ids_are_the_argmax_of_the_logits) {
  const Golden golden = load_golden(fixture("qwen3.golden.gguf"));
  const CommandResult result =
      quern({"run", fixture("qwen3.gguf"), "--tokens", id_list(golden.token_ids), "-n", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto last = golden.logits.end() - static_cast<ptrdiff_t>(golden.vocabulary);
  const auto best = std::max_element(last, golden.logits.end()) - last;
  EXPECT_EQ(std::stoll(result.out), best);
  EXPECT_EQ(result.err, "");
}

TEST(Run, the_same_seed_draws_the_same_tokens_and_another_seed_others) {
  auto draw = [](const std::string& seed) {
    return quern({"run", fixture("qwen3.gguf"), "--tokens", "1,2,3", "-n", "24", "--temp", "1.5",
                  "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", seed})
        .out;
  };
  EXPECT_EQ(draw("7"), draw("7"));
  EXPECT_NE(draw("7"), draw("8"));
}

TEST(Run, stops_when_the_context_is_full_and_says_so) {
  const CommandResult result =
      quern({"run", fixture("qwen3.gguf"), "--tokens", "1,2,3", "-n", "-1", "--ctx", "8"});
  EXPECT_EQ(result.exit_code, 0);
  // 3 tokens of the prompt, 5 more fed back, and the one that follows the last of them.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), ' '), 5);
  EXPECT_EQ(result.error_lines(), 1U);
  EXPECT_THAT(result.err, HasSubstr("context of 8"));
}

TEST(Run, an_interrupt_ends_it_cleanly) {
  CommandOptions options;
  options.signal_at_output = SIGINT;
  const CommandResult result = quern(
      {"run", fixture("qwen35moe.gguf"), "--tokens", "1,2,3", "-n", "-1", "--stats"}, options);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("interrupted after"));
  EXPECT_THAT(result.err, HasSubstr("generation:"));
  EXPECT_EQ(result.out.back(), '\n');
}

TEST(Store, a_second_run_compiles_nothing) {
  const TemporaryFolder store;
  const std::vector<std::string> run = {
      "run", fixture("llama.gguf"), "--tokens", "1,2,3", "-n", "4", "--stats"};
  const CommandResult first = quern(run, with_store(store.path()));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const KernelCounts cold = kernel_counts(first.err);
  EXPECT_GT(cold.compiled, 0) << first.err;
  const CommandResult second = quern(run, with_store(store.path()));
  const KernelCounts warm = kernel_counts(second.err);
  EXPECT_EQ(warm.compiled, 0) << second.err;
  EXPECT_EQ(warm.loaded, cold.compiled + cold.loaded);
  EXPECT_EQ(first.out, second.out);
}

TEST(Store, strict_compiles_nothing_and_names_what_is_missing) {
  const TemporaryFolder store;
  const std::vector<std::string> run = {
      "run", fixture("llama.gguf"), "--tokens", "1", "-n", "1", "--store", "strict", "--stats"};
  const CommandResult cold = quern(run, with_store(store.path()));
  EXPECT_EQ(cold.exit_code, 1);
  EXPECT_EQ(cold.error_lines(), 1U) << cold.err;
  EXPECT_THAT(cold.err, HasSubstr("--store strict"));
  const CommandResult compile = quern({"compile", fixture("llama.gguf")}, with_store(store.path()));
  ASSERT_EQ(compile.exit_code, 0) << compile.err;
  const CommandResult warm = quern(run, with_store(store.path()));
  EXPECT_EQ(warm.exit_code, 0) << warm.err;
  EXPECT_EQ(kernel_counts(warm.err).compiled, 0);
}

TEST(Store, readonly_and_off_keep_nothing_on_disk) {
  for (const char* mode : {"readonly", "off"}) {
    const TemporaryFolder store;
    const CommandResult result =
        quern({"run", fixture("llama.gguf"), "--tokens", "1", "-n", "1", "--store", mode},
              with_store(store.path()));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(store.entries(), 0U) << mode;
  }
}

TEST(Store, a_folder_that_cannot_be_written_costs_one_warning) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  const CommandResult result = quern({"run", fixture("llama.gguf"), "--tokens", "1", "-n", "1"},
                                     with_store(folder / "file" / "store"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  EXPECT_THAT(result.err, HasSubstr("warning"));
}

TEST(Store, the_inspector_sees_what_compile_made) {
  const TemporaryFolder store;
  const CommandOptions options = with_store(store.path());
  const CommandResult compile = quern({"compile", fixture("llama.gguf"), "--json"}, options);
  ASSERT_EQ(compile.exit_code, 0) << compile.err;
  const auto made = nlohmann::json::parse(compile.out);
  EXPECT_EQ(made["compiled"], made["kernels"]);
  EXPECT_TRUE(made["bundle"].is_null());

  const auto entries = nlohmann::json::parse(quern({"cache", "ls", "--json"}, options).out);
  EXPECT_EQ(entries.size(), made["kernels"]);
  const std::string first = entries[0]["key"], second = entries[1]["key"];
  EXPECT_THAT(quern({"cache", "show", first.substr(0, 16)}, options).out, HasSubstr(first));
  EXPECT_THAT(quern({"cache", "show", first, "--ir"}, options).out, HasSubstr("define"));
  EXPECT_THAT(quern({"cache", "show", first, "--asm"}, options).out, HasSubstr("quern_kernel"));
  EXPECT_THAT(quern({"cache", "show", first, "--record"}, options).out, Not(HasSubstr(first)));
  EXPECT_NE(quern({"cache", "diff", first, second}, options).out, "no difference\n");
  EXPECT_EQ(quern({"cache", "diff", first, first}, options).out, "no difference\n");
  EXPECT_EQ(quern({"cache", "verify"}, options).exit_code, 0);

  const auto why =
      nlohmann::json::parse(quern({"cache", "why", fixture("llama.gguf"), "--json"}, options).out);
  EXPECT_EQ(why.size(), made["kernels"]);
  for (const auto& kernel : why) EXPECT_EQ(kernel["hit"], true) << kernel.dump();
  const CommandResult other = quern({"cache", "why", fixture("gemma3.gguf")}, options);
  EXPECT_THAT(other.out, HasSubstr("miss"));
  EXPECT_THAT(other.out, HasSubstr("spec."));

  const std::string copy = (store / "copy").string();
  ASSERT_EQ(quern({"cache", "export", "-o", copy}, options).exit_code, 0);
  EXPECT_EQ(quern({"cache", "prune", "--max-size", "0"}, options).exit_code, 0);
  EXPECT_EQ(quern({"cache", "ls", "--json"}, options).out, "[]\n");
}

TEST(Store, verify_finds_a_flipped_bit) {
  const TemporaryFolder store;
  const CommandOptions options = with_store(store.path());
  ASSERT_EQ(quern({"compile", fixture("llama.gguf")}, options).exit_code, 0);
  const auto entries = nlohmann::json::parse(quern({"cache", "ls", "--json"}, options).out);
  const std::string path = entries[0]["path"];
  std::string image = read_text(path);
  image[image.size() / 2] = static_cast<char>(image[image.size() / 2] ^ 1);
  write_text(path, image);
  const CommandResult result = quern({"cache", "verify"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("1 bad"));
  EXPECT_EQ(result.error_lines(), 1U);
}

class Bundle : public ::testing::Test {
 protected:
  void SetUp() override {
    const CommandResult result = quern({"compile", model_, "-o", bundle_, "--json"}, home_);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    digest_ = nlohmann::json::parse(result.out)["digest"];
  }
  CommandResult run(const CommandOptions& options, std::vector<std::string> flags = {}) const {
    std::vector<std::string> arguments = {"run",   bundle_, "--model", model_,   "--tokens",
                                          "1,2,3", "-n",    "4",       "--stats"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return quern(arguments, options);
  }

  TemporaryFolder folder_;
  std::string model_ = fixture("llama.gguf");
  std::string bundle_ = (folder_ / "llama.qplan").string();
  CommandOptions home_ = with_store(folder_ / "home");
  CommandOptions elsewhere_ = with_store(folder_ / "elsewhere");
  std::string digest_;
};

TEST_F(Bundle, runs_where_it_was_compiled_without_a_compiler) {
  ASSERT_EQ(quern({"cache", "prune", "--max-size", "0"}, home_).exit_code, 0);
  const CommandResult result = run(home_, {"--store", "strict"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(kernel_counts(result.err).compiled, 0);
  EXPECT_EQ(result.out, quern({"run", model_, "--tokens", "1,2,3", "-n", "4"}).out);
}

TEST_F(Bundle, from_elsewhere_runs_only_with_its_digest) {
  const CommandResult refused = run(elsewhere_);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.error_lines(), 1U) << refused.err;
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(run(elsewhere_, {"--trust", std::string(64, '0')}).exit_code, 2);
  const CommandResult trusted = run(elsewhere_, {"--trust", digest_, "--store", "strict"});
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
}

TEST_F(Bundle, that_was_changed_is_not_the_one_that_was_trusted) {
  const auto kernels = std::filesystem::directory_iterator(bundle_ + "/kernels");
  const std::filesystem::path kernel = kernels->path();
  std::string image = read_text(kernel);
  image.back() = static_cast<char>(image.back() ^ 1);
  write_text(kernel, image);
  EXPECT_EQ(run(home_).exit_code, 1);
  EXPECT_EQ(run(elsewhere_, {"--trust", digest_}).exit_code, 2);
}

TEST_F(Bundle, belongs_to_its_model_and_its_options) {
  const CommandResult other =
      quern({"run", bundle_, "--model", fixture("qwen2.gguf"), "--tokens", "1"}, home_);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("another model"));
  const CommandResult option = run(home_, {"--ctx", "64"});
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_THAT(option.err, HasSubstr("fixed by the plan"));
}

TEST_F(Bundle, gives_logits_of_every_position_like_the_model) {
  const std::string a = (folder_ / "a.npy").string(), b = (folder_ / "b.npy").string();
  const CommandResult planned =
      quern({"logits", bundle_, "--model", model_, "--tokens", "5,6,7,8", "-o", a}, home_);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  ASSERT_EQ(quern({"logits", model_, "--tokens", "5,6,7,8", "-o", b}).exit_code, 0);
  EXPECT_EQ(read_text(a), read_text(b));
}

TEST_F(Bundle, compiling_again_replaces_it) {
  const CommandResult again = quern({"compile", model_, "-o", bundle_, "--ctx", "96"}, home_);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(run(home_).exit_code, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);
}

TEST(Bench, prints_the_rows_that_were_asked_for) {
  const CommandResult result = quern({"bench", fixture("llama.gguf"), "-p", "16,32", "-n", "4",
                                      "-d", "0,8", "-r", "2", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  std::vector<std::string> tests;
  for (const auto& row : json["rows"]) {
    tests.push_back(row["test"]);
    EXPECT_EQ(row["samples_ns"].size(), 2U);
    EXPECT_GT(row["avg_ts"].get<double>(), 0);
  }
  EXPECT_THAT(tests,
              ::testing::ElementsAre("pp16", "pp32", "tg4", "pp16 @ d8", "pp32 @ d8", "tg4 @ d8"));
  EXPECT_THAT(quern({"bench", fixture("llama.gguf"), "-p", "16", "-n", "0", "-r", "1"}).out,
              HasSubstr("| pp16 |"));
  EXPECT_THAT(
      quern({"bench", fixture("llama.gguf"), "-p", "16", "-n", "0", "-r", "1", "-o", "csv"}).out,
      HasSubstr("\"pp16\""));
}

// ---- real models ----

constexpr const char* smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* gemma3 = "gemma-3-270m-q4_k_m.gguf";

TEST(RealModel, smollm2_knows_the_capital_of_france) {
  const auto model = real_model(smollm2);
  if (!model) GTEST_SKIP() << missing_model(smollm2);
  const CommandResult result =
      quern({"run", model->string(), "-p", "The capital of France is", "-n", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Paris"));
}

TEST(RealModel, smollm2_answers_through_its_chat_template_and_stops) {
  const auto model = real_model(smollm2);
  if (!model) GTEST_SKIP() << missing_model(smollm2);
  const CommandResult result = quern({"run", model->string(), "--chat", "-p",
                                      "What is the capital of France?", "-n", "200", "--stats"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Paris"));
  EXPECT_THAT(result.out, Not(HasSubstr("<|im_end|>")));
  EXPECT_LT(result.out.size(), 400U);  // it stops by itself
}

TEST(RealModel, smollm2_refuses_a_prompt_longer_than_its_context) {
  const auto model = real_model(smollm2);
  if (!model) GTEST_SKIP() << missing_model(smollm2);
  const CommandResult result =
      quern({"run", model->string(), "-f", data_file("text/essays.txt").string(), "--ctx", "512"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("context of 512"));
}

double perplexity(const std::filesystem::path& model) {
  const CommandResult result =
      quern({"perplexity", model.string(), "-f", data_file("text/essays.txt").string(), "--ctx",
             "512", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_GE(json["tokens"].get<int>(), 8000);
  return json["perplexity"];
}

// llama.cpp's figures for the same text, context and weights (decoded to F32, since it rounds
// activations to 8 bits for quantised ones): docs/measurements.md says how they were taken.
TEST(RealModel, smollm2_perplexity_agrees_with_llama_cpp_within_half_a_percent) {
  const auto model = real_model(smollm2);
  if (!model) GTEST_SKIP() << missing_model(smollm2);
  constexpr double theirs = 32.6782;
  EXPECT_NEAR(perplexity(*model), theirs, 0.005 * theirs);
}

TEST(RealModel, gemma3_perplexity_agrees_with_llama_cpp_within_half_a_percent) {
  const auto model = real_model(gemma3);
  if (!model) GTEST_SKIP() << missing_model(gemma3);
  constexpr double theirs = 31.0425;
  EXPECT_NEAR(perplexity(*model), theirs, 0.005 * theirs);
}

TEST(RealModel, gemma3_continues_as_llama_cpp_does) {
  const auto model = real_model(gemma3);
  if (!model) GTEST_SKIP() << missing_model(gemma3);
  const CommandResult result =
      quern({"run", model->string(), "-p", "The capital of France is", "-n", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, " the capital of the country of France.\n");
}

}  // namespace
}  // namespace quern::test
