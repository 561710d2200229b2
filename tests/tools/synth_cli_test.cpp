// quern synth and quern bench --shape as a user drives them: the files run, nothing half-written
// stays.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <thread>

#include <nlohmann/json.hpp>

#include "models/gguf/file.h"
#include "models/synth/shapes.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Synth, lists_shapes_and_mixes) {
  const CommandResult result = quern({"synth", "--list"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const synth::Shape& shape : synth::shapes()) {
    EXPECT_THAT(result.out, HasSubstr(std::string(shape.name)));
  }
  for (const synth::Mix& mix : synth::mixes()) {
    EXPECT_THAT(result.out, HasSubstr(std::string(mix.name)));
  }
}

TEST(Synth, wrong_usage_exits_2_with_one_line_and_writes_nothing) {
  const TemporaryFolder folder;
  const std::string out = (folder / "x.gguf").string();
  const struct {
    std::vector<std::string> arguments;
    std::string words;
  } cases[] = {
      {{"synth"}, "NAME"},
      {{"synth", "llama-tiny"}, "-o"},
      {{"synth", "llama-9b", "-o", out}, "llama-tiny"},
      {{"synth", "llama-tiny", "--mix", "q9", "-o", out}, "iq4_xs"},
      {{"synth", "llama-tiny", "--threads", "0", "-o", out}, "--threads"},
      {{"synth", "llama-tiny", "--seed", "x", "-o", out}, "--seed"},
      {{"bench"}, "--shape"},
      {{"bench", "--shape", "llama-9b"}, "llama-tiny"},
      {{"bench", "--shape", "llama-tiny", "--mix", "q9"}, "iq4_xs"},
      {{"bench", out, "--shape", "llama-tiny"}, "both"},
      {{"bench", out, "--mix", "q8_0"}, "--mix"},
      {{"bench", "--shape", "llama-tiny", "--model", out}, "--model"},
  };
  for (const auto& each : cases) {
    const CommandResult result = quern(each.arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.error_lines(), 1U) << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.words));
  }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Synth, seeds_choose_the_values_and_nothing_else) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const char* seed) {
    const std::string out = (folder / name).string();
    EXPECT_EQ(quern({"synth", "llama-tiny", "-o", out, "--seed", seed}).exit_code, 0);
    return read_text(out);
  };
  const std::string a = write("a.gguf", "1"), b = write("b.gguf", "1"), c = write("c.gguf", "2");
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(a.size(), c.size());
  EXPECT_EQ(folder.entries(), 3U);
}

class SynthMix : public ::testing::TestWithParam<std::string> {};

TEST_P(SynthMix, logits_of_its_file_are_finite_and_differ) {
  const TemporaryFolder folder;
  const std::string model = (folder / "m.gguf").string(), out = (folder / "logits.npy").string();
  ASSERT_EQ(quern({"synth", "llama-tiny", "--mix", GetParam(), "-o", model}).exit_code, 0);
  const CommandResult result =
      quern({"logits", model, "--tokens", "1,2,3,500,1023", "--device", "cpu", "-o", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Npy npy = load_npy(out);
  ASSERT_EQ(npy.rows, 5U);
  ASSERT_EQ(npy.columns, 1024U);
  float least = npy.values[0], most = npy.values[0];
  for (const float value : npy.values) {
    ASSERT_TRUE(std::isfinite(value));
    least = std::min(least, value);
    most = std::max(most, value);
  }
  EXPECT_GT(most - least, 0.5F);
  EXPECT_LT(most - least, 50.F);
}

std::vector<std::string> mix_names() {
  std::vector<std::string> names;
  for (const synth::Mix& mix : synth::mixes()) names.emplace_back(mix.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Mixes, SynthMix, ::testing::ValuesIn(mix_names()),
                         [](const auto& each) { return each.param; });

/// Starts quern synth of a shape that takes many seconds, as a child with `prepare` done in it.
pid_t start_synth(const std::string& shape, const std::string& out,
                  const std::function<void()>& prepare) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  prepare();
  ::execl(QUERN_BINARY, "quern", "synth", shape.c_str(), "--mix", "q8_0", "-o", out.c_str(),
          static_cast<char*>(nullptr));
  ::_exit(127);
}

TEST(Synth, an_interrupted_run_leaves_nothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    const pid_t child = start_synth("llama-3.1-8b", (folder / "x.gguf").string(), [] {});
    ASSERT_GT(child, 0);
    for (int i = 0; i < 2000 && folder.entries() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(folder.entries(), 1U);  // it has begun
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(child, signal);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(folder.entries(), 0U);
  }
}

TEST(Synth, a_file_that_does_not_fit_leaves_nothing) {
  const TemporaryFolder folder;
  const pid_t child = start_synth("qwen3moe-long", (folder / "x.gguf").string(), [] {
    const rlimit limit{uint64_t{1} << 20, uint64_t{1} << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    std::freopen("/dev/null", "w", stderr);
  });
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(folder.entries(), 0U);
  const CommandResult full = quern({"synth", "llama-tiny", "-o", "/dev/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("/dev/full"));
}

TEST(BenchShape, needs_no_file_and_prints_rows_in_every_format) {
  const std::vector<std::string> command = {"bench", "--shape", "llama-tiny", "--device", "cpu",
                                            "-p",    "16",      "-p",         "32,8",     "-n",
                                            "4",     "-d",      "0,8",        "-r",       "2"};
  const auto with_format = [&](const char* format) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"-o", format});
    const CommandResult result = quern(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto json = nlohmann::json::parse(with_format("json"));
  EXPECT_EQ(json["synthetic"]["shape"], "llama-tiny");
  EXPECT_EQ(json["synthetic"]["mix"], "q4_k_m");
  EXPECT_GT(json["load"]["weights_ms"].get<double>(), 0);
  EXPECT_TRUE(json["load"].contains("compile_ms"));
  std::vector<std::string> tests;
  for (const auto& row : json["rows"]) {
    tests.push_back(row["test"]);
    EXPECT_EQ(row["samples_ns"].size(), 2U);
    EXPECT_GT(row["avg_ts"].get<double>(), 0);
    EXPECT_FALSE(row.contains("control"));  // of a GPU alone
  }
  EXPECT_THAT(tests, ::testing::ElementsAre("pp16", "pp32", "pp8", "tg4", "pp16 @ d8", "pp32 @ d8",
                                            "pp8 @ d8", "tg4 @ d8"));
  const std::string markdown = with_format("md");
  EXPECT_THAT(markdown, HasSubstr("| test | t/s |"));
  EXPECT_THAT(markdown, HasSubstr("llama-tiny (random weights)"));
  EXPECT_THAT(markdown, HasSubstr("| tg4 @ d8 |"));
  EXPECT_THAT(markdown, HasSubstr("load: 0 kernels compiled"));
  EXPECT_THAT(with_format("csv"), HasSubstr("\"compile_ms\""));
}

TEST(BenchShape, measures_the_same_model_as_the_file_that_synth_writes) {
  const TemporaryFolder folder;
  const std::string model = (folder / "m.gguf").string();
  ASSERT_EQ(quern({"synth", "llama-tiny", "--mix", "q8_0", "-o", model}).exit_code, 0);
  const auto row = [](std::vector<std::string> source) {
    source.insert(source.begin(), "bench");
    for (const char* each : {"--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "-o", "json"}) {
      source.emplace_back(each);
    }
    const CommandResult result = quern(source);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const auto file = row({model}), memory = row({"--shape", "llama-tiny", "--mix", "q8_0"});
  EXPECT_TRUE(file["synthetic"].is_null());
  for (const char* key : {"model", "model_size", "model_n_params", "target", "chunk"}) {
    EXPECT_EQ(file["rows"][0][key], memory["rows"][0][key]) << key;
  }
}

TEST(BenchShape, a_shape_larger_than_memory_is_refused_before_it_is_made) {
  const uint64_t memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto& shape = synth::shape_named("qwen3.5-35b-a3b");
  if (synth::total_bytes(synth::tensors_of(shape, synth::mix_named("bf16"))) <= memory) {
    GTEST_SKIP() << "this machine has memory for the largest shape";
  }
  const CommandResult result = quern({"bench", "--shape", "qwen3.5-35b-a3b", "--mix", "bf16"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("of memory are free"));
}

}  // namespace
}  // namespace quern::test
