// What the command says when NVRTC is missing, broken or too old, and what the inspector says of
// kernels that a sound one has compiled.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string fixture(const std::string& name) {
  return data_file("fixtures/" + name + ".gguf").string();
}
std::string model() {
  return fixture("llama");
}

/// `quern doctor` where it finds no NVRTC, else empty.
std::string no_nvrtc() {
  const std::string doctor = quern({"doctor"}).out;
  return doctor.find("ok    nvrtc") == std::string::npos ? doctor : std::string();
}
#define QUERN_NEED_NVRTC()                                               \
  do {                                                                   \
    const std::string problem = no_nvrtc();                              \
    if (!problem.empty()) {                                              \
      ASSERT_EQ(std::getenv("QUERN_REQUIRE_NVRTC"), nullptr) << problem; \
      GTEST_SKIP() << "no NVRTC: " << problem;                           \
    }                                                                    \
  } while (0)

CommandOptions with_environment(std::map<std::string, std::string> environment) {
  CommandOptions options;
  options.environment = std::move(environment);
  return options;
}

class NvrtcFailure : public ::testing::Test {
 protected:
  /// `quern compile` for a GPU into an empty store, with this library as NVRTC.
  CommandResult compile(const std::string& library, const std::string& library_path = {}) const {
    return quern({"compile", model(), "--target", "sm_90a"},
                 with_environment({{"QUERN_CACHE_DIR", (folder_ / "store").string()},
                                   {"QUERN_NVRTC", library},
                                   {"LD_LIBRARY_PATH", library_path}}));
  }
  static void expect_line(const CommandResult& result, const std::string& reason,
                          const std::string& remedy) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.error_lines(), 1U) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr(reason), HasSubstr("; " + remedy)));
  }

  TemporaryFolder folder_;
};

constexpr const char* install = "install the CUDA toolkit 12 or 13, or the PyPI package";

TEST_F(NvrtcFailure, a_missing_library_is_one_line_with_the_remedy) {
  expect_line(compile("/nowhere/libnvrtc.so.13"), "QUERN_NVRTC=/nowhere/libnvrtc.so.13", install);
}

TEST_F(NvrtcFailure, a_file_that_is_no_library_is_one_line_with_the_remedy) {
  const std::string path = (folder_ / "libnvrtc.so.13").string();
  write_text(path, "not a library");
  expect_line(compile(path), path, install);
}

TEST_F(NvrtcFailure, another_library_is_one_line_with_the_remedy) {
  expect_line(compile("libm.so.6"), "has no function nvrtcVersion", install);
}

TEST_F(NvrtcFailure, a_version_too_old_is_one_line_with_both_versions) {
  expect_line(compile(QUERN_NVRTC_OLD), "is version 11.8, Quern needs 12.0 or newer", install);
}

TEST_F(NvrtcFailure, missing_builtins_are_one_line_with_the_remedy) {
  expect_line(compile(QUERN_NVRTC_NO_BUILTINS), "cannot find its libnvrtc-builtins library",
              "install both from the same CUDA version");
}

TEST_F(NvrtcFailure, a_target_newer_than_the_library_is_one_line_with_the_remedy) {
  expect_line(compile(QUERN_NVRTC_NO_TARGET), "NVRTC 12.4 does not know this target",
              "use a newer CUDA toolkit");
}

TEST_F(NvrtcFailure, the_real_library_without_its_builtins_says_the_same) {
  const char* real = std::getenv("QUERN_NVRTC");
  const std::string library = real != nullptr && *real != '\0' ? real : "libnvrtc.so.13";
  if (compile(library).exit_code != 0) GTEST_SKIP() << library << " does not compile here";
  const std::string doctor = quern({"doctor"}).out;
  std::smatch version;
  ASSERT_TRUE(std::regex_search(doctor, version, std::regex("nvrtc +([0-9]+\\.[0-9]+)"))) << doctor;
  // An empty file comes before the real one and cannot be loaded, wherever that one is.
  const std::filesystem::path folder = folder_ / "empty";
  std::filesystem::create_directory(folder);
  write_text(folder / ("libnvrtc-builtins.so." + version[1].str()), "");
  std::filesystem::remove_all(folder_ / "store");
  expect_line(compile(library, folder.string()), "cannot find its libnvrtc-builtins library",
              "install both from the same CUDA version");
}

TEST_F(NvrtcFailure, doctor_names_what_is_wrong_and_the_cpu_still_works) {
  const CommandResult result =
      quern({"doctor"}, with_environment({{"QUERN_NVRTC", QUERN_NVRTC_OLD}}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("11.8"));
}

// ---- whole models for a GPU that is not here ----

class CompileModels : public ::testing::TestWithParam<std::string> {};

TEST_P(CompileModels, dense_models_compile_without_spills_and_share_kernels) {
  QUERN_NEED_NVRTC();
  const TemporaryFolder store;
  for (const char* name : {"llama", "qwen2", "gemma3"}) {
    const CommandResult result =
        quern({"compile", fixture(name), "--target", GetParam(), "--json"},
              with_environment({{"QUERN_CACHE_DIR", store.path().string()}}));
    // Spills and serialised wgmma instructions are errors of this command.
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    const json made = json::parse(result.out);
    EXPECT_EQ(made["target"], GetParam());
    EXPECT_LE(made["kernels"], 64);
    EXPECT_EQ(made["loaded"] != 0, std::string_view(name) != "llama") << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CompileModels,
                         ::testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& target) { return target.param; });

// ---- the inspector, of kernels for a GPU ----

class CudaStore : public ::testing::Test {
 protected:
  void SetUp() override {
    QUERN_NEED_NVRTC();
    const CommandResult made =
        quern({"compile", model(), "--target", "sm_90a", "-o", bundle_, "--json"}, home_);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    made_ = json::parse(made.out);
    entries_ = json::parse(quern({"cache", "ls", "--json"}, home_).out);
  }
  std::string key_of(const std::string& family) const {
    for (const json& entry : entries_) {
      if (entry["family"] == family) return entry["key"];
    }
    ADD_FAILURE() << "no kernel of the family " << family;
    return {};
  }
  CommandOptions with_store(const std::string& name) const {
    return with_environment({{"QUERN_CACHE_DIR", (folder_ / name).string()}});
  }

  TemporaryFolder folder_;
  std::string bundle_ = (folder_ / "llama.qplan").string();
  CommandOptions home_ = with_store("home");
  json made_, entries_;
};

TEST_F(CudaStore, every_kernel_is_listed_with_its_target_and_resources) {
  EXPECT_LE(made_["kernels"], 64);
  ASSERT_EQ(entries_.size(), made_["kernels"]);
  EXPECT_EQ(made_["compiled"], made_["kernels"]);
  for (const json& entry : entries_) {
    EXPECT_EQ(entry["fields"]["target"], "cuda sm_90a");
    const json& record = entry["record"];
    for (const char* fact : {"compile_ms", "code_bytes", "registers", "shared_bytes",
                             "launch_shared_bytes", "spill_bytes", "wgmma_serialized"}) {
      EXPECT_TRUE(record.contains(fact)) << fact;
    }
    EXPECT_EQ(record["spill_bytes"], "0");
    EXPECT_NE(record["registers"], "0");
    const std::string log = record["log"];
    EXPECT_THAT(log, HasSubstr("registers"));
    EXPECT_EQ(log.find('\0'), std::string::npos);
  }
  EXPECT_THAT(quern({"cache", "ls"}, home_).out, HasSubstr(" sm_90a "));
  EXPECT_EQ(quern({"cache", "verify"}, home_).exit_code, 0);
}

TEST_F(CudaStore, show_prints_the_record_the_source_and_the_ptx) {
  const std::string key = key_of("gemm");
  EXPECT_THAT(quern({"cache", "show", key.substr(0, 12)}, home_).out,
              AllOf(HasSubstr(key), HasSubstr("registers"), HasSubstr("launch_shared_bytes"),
                    HasSubstr("spill_bytes"), HasSubstr("compile_ms"), HasSubstr("ptxas"),
                    HasSubstr("\"tier\":\"mma\"")));
  EXPECT_THAT(quern({"cache", "show", key, "--source"}, home_).out,
              HasSubstr("constexpr GemmSpec quern_spec"));
  EXPECT_THAT(quern({"cache", "show", key, "--ptx"}, home_).out, HasSubstr(".target sm_90a"));
  const CommandResult ir = quern({"cache", "show", key, "--ir"}, home_);
  EXPECT_EQ(ir.exit_code, 2);
  EXPECT_THAT(ir.err, HasSubstr("is a kernel for sm_90a; use --source or --ptx"));
}

TEST_F(CudaStore, why_says_hit_or_how_the_nearest_kernel_differs) {
  const auto why = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"cache", "why"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return quern(arguments, home_);
  };
  const json hits = json::parse(why({model(), "--target", "sm_90a", "--json"}).out);
  EXPECT_EQ(hits.size(), made_["kernels"]);
  for (const json& kernel : hits) EXPECT_EQ(kernel["hit"], true) << kernel.dump();
  const CommandResult other = why({model(), "--target", "sm_80"});
  EXPECT_THAT(other.out, AllOf(HasSubstr("miss"), HasSubstr("target: cuda sm_90a | cuda sm_80"),
                               HasSubstr("0 of ")));
  EXPECT_THAT(why({bundle_}).out, Not(HasSubstr("miss")));
  EXPECT_EQ(why({bundle_, "--target", "sm_80"}).exit_code, 2);
  const std::string a = key_of("gemm"), b = key_of("attention");
  EXPECT_THAT(quern({"cache", "diff", a, b}, home_).out, HasSubstr("family: gemm | attention"));
}

TEST_F(CudaStore, exported_and_pruned_kernels_are_whole) {
  const std::string copy = (folder_ / "copy").string();
  ASSERT_EQ(quern({"cache", "export", "-o", copy}, home_).exit_code, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(copy), {}),
            static_cast<ptrdiff_t>(entries_.size()));
  ASSERT_EQ(quern({"cache", "prune", "--max-size", "0"}, home_).exit_code, 0);
  EXPECT_EQ(quern({"cache", "ls", "--json"}, home_).out, "[]\n");
  // The bundle still has them all.
  const CommandResult why = quern({"cache", "why", bundle_}, home_);
  EXPECT_THAT(why.out, Not(HasSubstr("miss")));
}

TEST_F(CudaStore, a_bundle_from_elsewhere_is_refused_without_its_digest) {
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"run", bundle_, "--model", model(), "--tokens", "1", "-n", "1"});
    return quern(flags, with_store("elsewhere"));
  };
  const std::string digest = made_["digest"], refusal = "was not compiled on this machine";
  const CommandResult refused = run({});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(refusal), HasSubstr(digest)));
  EXPECT_EQ(run({"--trust", std::string(64, '0')}).exit_code, 2);
  // With it, what is left to fail is that there may be no GPU here.
  EXPECT_THAT(run({"--trust", digest}).err, Not(HasSubstr(refusal)));
}

}  // namespace
}  // namespace quern::test
