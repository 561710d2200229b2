// The command line: usage, errors and exit codes, and the outputs that scripts read. Nothing here
// runs a model.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string fixture(const std::string& name) {
  return (data_file("fixtures") / name).string();
}

/// A failure is one line on stderr, begins with the command's name, and nothing goes to stdout.
void expect_error(const CommandResult& result, int code, const std::string& words) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  EXPECT_THAT(result.err, StartsWith("quern: "));
  EXPECT_THAT(result.err, HasSubstr(words));
  EXPECT_EQ(result.out, "");
}

TEST(Usage, every_subcommand_has_help_and_exits_0) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"inspect"},
                                                          {"compile"},
                                                          {"run"},
                                                          {"logits"},
                                                          {"bench"},
                                                          {"synth"},
                                                          {"perplexity"},
                                                          {"plan"},
                                                          {"plan", "show"},
                                                          {"plan", "diff"},
                                                          {"doctor"},
                                                          {"plan", "report"},
                                                          {"cache"},
                                                          {"cache", "ls"},
                                                          {"cache", "show"},
                                                          {"cache", "verify"},
                                                          {"cache", "prune"},
                                                          {"cache", "diff"},
                                                          {"cache", "why"},
                                                          {"cache", "export"},
                                                          {"cache", "path"}};
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const CommandResult result = quern(command);
    EXPECT_EQ(result.exit_code, 0) << command.front();
    EXPECT_THAT(result.out, HasSubstr("Usage"));
    EXPECT_EQ(result.err, "");
  }
}

TEST(Usage, version_is_printed) {
  const CommandResult result = quern({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("quern "));
}

TEST(Usage, wrong_command_lines_exit_2_with_one_line) {
  const std::string model = fixture("llama.gguf");
  const struct {
    std::vector<std::string> arguments;
    std::string words;
  } cases[] = {
      {{}, "subcommand"},
      {{"grind"}, "grind"},
      {{"plan"}, "quern plan --help"},
      {{"cache", "eat"}, "eat"},
      {{"run"}, "MODEL"},
      {{"run", model, "--nonsense"}, "--nonsense"},
      {{"run", model}, "one of -p, -f and --tokens"},
      {{"run", model, "-p", "a", "--tokens", "1"}, "one of -p, -f and --tokens"},
      {{"run", model, "-p", ""}, "is empty"},
      {{"run", model, "-f", "/dev/null"}, "is empty"},
      {{"run", model, "--tokens", ""}, "the list is empty"},
      {{"run", model, "--tokens", "@/dev/null"}, "the list is empty"},
      {{"run", model, "--tokens", "1,x,3"}, "'x'"},
      {{"run", model, "--tokens", "1,-3"}, "'-3'"},
      {{"run", model, "--tokens", "99999999999"}, "'99999999999'"},
      {{"run", model, "--tokens", "1 2 320"}, "token 320 at position 2"},
      {{"run", model, "--tokens", "1,2,3,4,5", "--ctx", "4"}, "context of 4"},
      {{"run", model, "-p", "text"}, "tokenizer"},
      {{"run", model, "--tokens", "1", "--chat"}, "--chat"},
      {{"run", model, "-p", "a", "--system", "b"}, "--system"},
      {{"run", model, "--tokens", "1", "-n", "-7"}, "-7"},
      {{"run", model, "--tokens", "1", "--temp", "-1"}, "temp"},
      {{"run", model, "--tokens", "1", "--top-p", "2"}, "top-p"},
      {{"run", model, "--tokens", "1", "--min-p", "-0.5"}, "min-p"},
      {{"run", model, "--tokens", "1", "--ctx", "0"}, "--ctx"},
      {{"run", model, "--tokens", "1", "--threads", "0"}, "--threads"},
      {{"run", model, "--tokens", "1", "--kv", "f64"}, "--kv"},
      {{"run", model, "--tokens", "1", "--store", "maybe"}, "--store"},
      {{"run", model, "--tokens", "1", "--gpu-layers", "many"}, "--gpu-layers"},
      {{"run", model, "--tokens", "1", "--model", model}, "--model"},
      {{"run", model, "--tokens", "1", "--trust", "00"}, "--trust"},
      {{"logits", model, "--tokens", "1,2", "--positions", "2", "-o", "/dev/null"}, "beyond"},
      {{"logits", model, "--tokens", "1,2", "--positions", "1,0", "-o", "/dev/null"}, "ascending"},
      {{"logits", model, "--tokens", "1,320", "-o", "/dev/null"}, "token 320"},
      {{"perplexity", model, "-f", "/dev/null"}, "is empty"},
      {{"perplexity", model, "-f", fixture("README.md")}, "tokenizer"},
      {{"bench", model, "-p", "0", "-n", "0"}, "nothing to measure"},
      {{"bench", model, "-o", "xml"}, "-o"},
      {{"compile", model, "--target", "pdp-11"}, "pdp-11"},
      {{"cache", "prune", "--max-size", "5X"}, "'5X'"},
      {{"cache", "prune", "--max-size", "99999999999999T"}, "no size"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(::testing::PrintToString(wrong.arguments));
    expect_error(quern(wrong.arguments), 2, wrong.words);
  }
}

TEST(Files, what_cannot_be_read_exits_1_and_names_it) {
  const std::string missing = "/nonexistent/model.gguf";
  for (const std::string command : {"inspect", "compile"}) {
    expect_error(quern({command, missing}), 1, missing);
  }
  expect_error(quern({"run", missing, "-p", "a"}), 1, missing);
  expect_error(quern({"run", fixture("llama.gguf"), "-f", missing}), 1, missing);
  expect_error(quern({"run", fixture("llama.gguf"), "--tokens", at_file(missing)}), 1, missing);
  expect_error(quern({"perplexity", fixture("llama.gguf"), "-f", missing}), 1, missing);
  expect_error(quern({"plan", "show", missing}), 1, missing);
}

TEST(Files, a_model_without_read_permission_exits_1) {
  const TemporaryFolder folder;
  const std::string model = (folder / "secret.gguf").string();
  std::filesystem::copy_file(fixture("llama.gguf"), model);
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(model.c_str(), 0);
  CommandOptions options;
  options.as_nobody = true;
  options.environment["QUERN_CACHE_DIR"] = "/nonexistent/store";
  const CommandResult result = quern({"inspect", model}, options);
  if (result.exit_code == 126 || result.exit_code == 127) {
    GTEST_SKIP() << "the build folder cannot be entered by another user";
  }
  expect_error(result, 1, "secret.gguf");
  EXPECT_THAT(result.err, HasSubstr("ermission"));
}

TEST(Files, what_is_no_sound_model_exits_3) {
  const TemporaryFolder folder;
  const std::string text = (folder / "text.gguf").string(),
                    empty = (folder / "empty.gguf").string();
  write_text(text, "This is not a model but a sentence about one.");
  write_text(empty, "");
  for (const std::string& path : {text, empty}) {
    expect_error(quern({"inspect", path}), 3, path);
    expect_error(quern({"run", path, "--tokens", "1"}), 3, path);
    expect_error(quern({"logits", path, "--tokens", "1", "-o", (folder / "x.npy").string()}), 3,
                 path);
  }
  EXPECT_EQ(folder.entries(), 2U);  // nothing half-written
  expect_error(quern({"run", fixture("quant_blocks.gguf"), "--tokens", "1"}), 3, "iq3_s");
}

TEST(Files, an_unknown_architecture_exits_3_and_is_named) {
  const TemporaryFolder folder;
  std::string image = read_text(fixture("llama.gguf"));
  const std::string key = "general.architecture";
  const size_t value = image.find(key) + key.size() + 4 + 8;  // type, length, then the text
  ASSERT_EQ(image.substr(value, 5), "llama");
  image.replace(value, 5, "alpac");
  const std::string path = (folder / "alpac.gguf").string();
  write_text(path, image);
  expect_error(quern({"run", path, "--tokens", "1"}), 3, "alpac");
  expect_error(quern({"compile", path, "-o", (folder / "x.qplan").string()}), 3, "alpac");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Files, a_model_cut_off_anywhere_exits_3) {
  const TemporaryFolder folder;
  const std::string whole = read_text(fixture("llama3.gguf"));
  const std::string path = (folder / "cut.gguf").string();
  for (size_t part = 1; part < 24; ++part) {
    const size_t length = whole.size() * part / 24;
    write_text(path, whole.substr(0, length));
    SCOPED_TRACE(length);
    expect_error(quern({"run", path, "--tokens", "1"}), 3, "cut.gguf");
  }
}

TEST(Files, an_output_that_cannot_be_written_is_refused_before_the_work) {
  const TemporaryFolder folder;
  const std::string model = fixture("llama.gguf");
  // A store that is not there shows that no kernel was made: a run would have filled it.
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = (folder / "store").string();
  for (const std::string& path :
       {std::string("/nonexistent/folder/x.npy"), folder.path().string()}) {
    expect_error(quern({"logits", model, "--tokens", "1", "-o", path}, options), 1, path);
  }
  expect_error(quern({"compile", model, "-o", "/nonexistent/folder/x.qplan"}, options), 1,
               "/nonexistent/folder/x.qplan");
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Files, compile_does_not_replace_what_is_no_bundle) {
  const TemporaryFolder folder;
  write_text(folder / "precious.txt", "data");
  expect_error(quern({"compile", fixture("llama.gguf"), "-o", folder.path().string()}), 1,
               "is no bundle");
  EXPECT_EQ(read_text(folder / "precious.txt"), "data");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Files, compile_into_a_store_that_cannot_be_written_exits_1) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = (folder / "file" / "store").string();
  expect_error(quern({"compile", fixture("llama.gguf")}, options), 1, "file/store");
}

TEST(Files, a_plan_that_is_no_plan_exits_1_and_a_plan_needs_its_model) {
  const TemporaryFolder folder;
  const std::string path = (folder / "plan.json").string();
  write_text(path, "{\"version\": 999}");
  expect_error(quern({"plan", "show", path}), 1, "plan.json");
  expect_error(quern({"run", path, "--tokens", "1"}), 2, "--model");
  expect_error(quern({"run", folder.path().string(), "--tokens", "1", "--model", "x.gguf"}), 1,
               "is no bundle");
}

TEST(Files, a_gpu_that_cannot_be_used_is_refused_in_words) {
  const std::string model = fixture("llama.gguf");
  const CommandResult result = quern({"run", model, "--tokens", "1", "--device", "cuda:99"});
  EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2) << result.err;
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  expect_error(quern({"run", model, "--tokens", "1", "--device", "cuda:x"}), 2, "cuda:x");
}

TEST(Inspect, json_says_what_the_file_holds) {
  const CommandResult result = quern({"inspect", fixture("llama.gguf"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["supported"], true);
  EXPECT_TRUE(json["problem"].is_null());
  EXPECT_EQ(json["gguf_version"], 3);
  EXPECT_EQ(json["file_bytes"], std::filesystem::file_size(fixture("llama.gguf")));
  EXPECT_EQ(json["fingerprint"].get<std::string>().size(), 64U);
  EXPECT_EQ(json["model"]["vocabulary"], 320);
  EXPECT_EQ(json["metadata"]["general.architecture"], "llama");
  EXPECT_GT(json["plan"]["kernels"].get<int>(), 0);
  EXPECT_GT(json["plan"]["capacity"]["total"].get<int64_t>(), 0);
  uint64_t tensors = 0, bytes = 0, mix_bytes = 0;
  for (const auto& row : json["quant_mix"]) {
    tensors += row["tensors"].get<uint64_t>();
    mix_bytes += row["bytes"].get<uint64_t>();
  }
  for (const auto& tensor : json["tensors"]) bytes += tensor["bytes"].get<uint64_t>();
  EXPECT_EQ(tensors, json["tensors"].size());
  EXPECT_EQ(bytes, mix_bytes);
}

TEST(Inspect, a_file_that_cannot_run_is_shown_all_the_same_and_exits_3) {
  const CommandResult result = quern({"inspect", fixture("quant_blocks.gguf"), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["supported"], false);
  EXPECT_TRUE(json["plan"].is_null());
  EXPECT_THAT(json["problem"].get<std::string>(), HasSubstr("iq3_s"));
  EXPECT_GT(json["tensors"].size(), 10U);
}

TEST(Inspect, plan_options_reach_the_plan) {
  const auto json = nlohmann::json::parse(
      quern({"inspect", fixture("llama.gguf"), "--json", "--ctx", "96", "--chunk", "7"}).out);
  EXPECT_EQ(json["plan"]["context"], 96);
  EXPECT_EQ(json["plan"]["chunk"], 7);
}

TEST(Plan, shows_and_compares) {
  const std::string model = fixture("qwen3.gguf");
  const CommandResult text = quern({"plan", "show", model});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("qwen3"));
  const CommandResult json = quern({"plan", "show", model, "--json"});
  EXPECT_TRUE(nlohmann::json::accept(json.out));

  const TemporaryFolder folder;
  const std::string saved = (folder / "a.json").string();
  write_text(saved, json.out);
  EXPECT_EQ(quern({"plan", "show", saved, "--json"}).out, json.out);
  EXPECT_EQ(quern({"plan", "diff", saved, model}).out, "no difference\n");
  const CommandResult other = quern({"plan", "show", model, "--json", "--ctx", "64"});
  write_text(folder / "b.json", other.out);
  EXPECT_THAT(quern({"plan", "diff", saved, (folder / "b.json").string()}).out,
              HasSubstr("context"));
}

TEST(Doctor, says_what_works_and_exits_0) {
  const CommandResult result = quern({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* subject : {"cpu", "llvm", "store", "cuda driver", "nvrtc", "cublasLt"}) {
    EXPECT_THAT(result.out, HasSubstr(subject));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("BAD")));
}

TEST(Doctor, a_store_that_cannot_be_written_is_named) {
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = "/dev/null/store";
  const CommandResult result = quern({"doctor"}, options);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("BAD   store        /dev/null/store"));
}

TEST(Cache, path_follows_the_environment) {
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = "/some/where";
  EXPECT_EQ(quern({"cache", "path"}, options).out, "/some/where\n");
  options.environment["QUERN_CACHE_DIR"] = "";
  options.environment["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(quern({"cache", "path"}, options).out, "/xdg/quern\n");
}

TEST(Cache, an_empty_store_has_no_kernels) {
  const TemporaryFolder folder;
  CommandOptions options;
  options.environment["QUERN_CACHE_DIR"] = folder.path().string();
  EXPECT_THAT(quern({"cache", "ls"}, options).out, HasSubstr("0 kernels"));
  EXPECT_EQ(quern({"cache", "ls", "--json"}, options).out, "[]\n");
  EXPECT_EQ(quern({"cache", "verify"}, options).out, "0 good, 0 bad\n");
  expect_error(quern({"cache", "show", "abcdef"}, options), 1, "abcdef");
  expect_error(quern({"cache", "diff", "abcdef", "012345"}, options), 1, "abcdef");
}

TEST(Output, a_reader_that_has_gone_ends_the_command_quietly) {
  CommandOptions options;
  options.closed_reader = true;
  const CommandResult result = quern({"inspect", fixture("llama.gguf"), "--json"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "");
}

TEST(Output, a_full_disk_is_an_error_of_one_line) {
  CommandOptions options;
  options.standard_output = "/dev/full";
  expect_error(quern({"inspect", fixture("llama.gguf"), "--json"}, options), 1, "standard output");
}

TEST(Output, no_progress_is_shown_without_a_terminal) {
  EXPECT_EQ(quern({"inspect", fixture("llama.gguf")}).err, "");
}

}  // namespace
}  // namespace quern::test
