// What the command says of GPUs, on the stand-in driver of tests/support/fake_cuda.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/fixtures.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::map<std::string, std::string>;

CommandOptions stand_in(const Environment& environment = {}) {
  CommandOptions options;
  options.environment = environment;
  options.environment.emplace("QUERN_CUDA_DRIVER", QUERN_FAKE_CUDA);
  return options;
}

TEST(Doctor, lists_the_gpus_with_their_memory) {
  const CommandResult result =
      quern({"doctor"}, stand_in({{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_CC", "89"}}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line : {"cuda:0       Stand-in GPU, compute capability 8.9, 8.0 GiB of 8.0 GiB",
                           "cuda:1       Stand-in GPU, compute capability 8.9"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
}

/// A driver that cannot be used: what it is, what the line says, and the exit code of a command
/// that needs it.
struct Unusable {
  Environment environment;
  std::string line;
};

const Unusable unusable_drivers[] = {
    {{{"QUERN_CUDA_DRIVER", "/nowhere/libcuda.so.1"}},
     "QUERN_CUDA_DRIVER=/nowhere/libcuda.so.1 cannot be loaded"},
    {{{"QUERN_CUDA_DRIVER", QUERN_INCOMPLETE_CUDA}},
     "it has no function cuGetErrorName; update the driver"},
    {{{"FAKE_CUDA_VERSION", "11080"}},
     "it supports CUDA 11.8, Quern needs 12.0; update the driver"},
    {{{"FAKE_CUDA_DEVICES", "0"}}, "it finds no GPU; use --device cpu"},
    {{{"FAKE_CUDA_INIT", "803"}},
     "it does not start (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH); see whether nvidia-smi works"}};

TEST(Doctor, a_driver_that_cannot_be_used_is_no_failure_and_says_why) {
  for (const Unusable& driver : unusable_drivers) {
    const CommandResult result = quern({"doctor"}, stand_in(driver.environment));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("none  cuda driver  CUDA driver: " + driver.line));
  }
}

/// Runs one token of a fixture on a device.
CommandResult run_on(const std::string& device, const Environment& environment) {
  return quern({"run", data_file("fixtures/llama.gguf").string(), "--tokens", "1", "-n", "1",
                "--device", device},
               stand_in(environment));
}

void expect_one_line(const CommandResult& result, int code, const std::string& words) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  EXPECT_THAT(result.err, HasSubstr("quern: "));
  EXPECT_THAT(result.err, HasSubstr(words));
  EXPECT_EQ(result.out, "");
}

TEST(Gpu, a_driver_that_cannot_be_used_ends_a_run_with_its_line) {
  for (const Unusable& driver : unusable_drivers) {
    expect_one_line(run_on("cuda", driver.environment), 1, driver.line);
  }
}

TEST(Gpu, a_device_that_is_not_there_is_wrong_usage) {
  expect_one_line(run_on("cuda:7", {{"FAKE_CUDA_DEVICES", "2"}}), 2,
                  "--device cuda:7: this machine has 2 GPU(s); count from 0, or use --device cpu");
  expect_one_line(run_on("cuda:x", {}), 2, "cuda:x: is no device; use auto, cpu or cuda[:I]");
}

TEST(Gpu, one_that_no_target_fits_is_named) {
  expect_one_line(run_on("cuda", {{"FAKE_CUDA_CC", "75"}}), 1,
                  "compute capability 7.5: no GPU target of Quern runs on it; use --device cpu");
}

TEST(Gpu, a_model_that_does_not_fit_is_told_with_both_sizes) {
  expect_one_line(run_on("cuda", {{"FAKE_CUDA_MEMORY", "1048576"}}), 4,
                  "and Stand-in GPU has 1 MiB free of 1 MiB; take a smaller --ctx");
}

TEST(Gpu, a_fast_plan_without_cublaslt_is_refused_when_it_is_loaded) {
  const auto run = [](const std::string& numerics, const std::string& chunk) {
    return quern(
        {"run", data_file("fixtures/llama.gguf").string(), "--tokens", "1", "-n", "1", "--device",
         "cuda", "--numerics", numerics, "--chunk", chunk, "--store", "strict"},
        stand_in({{"QUERN_CUBLASLT", "/nowhere/libcublasLt.so.13"}}));
  };
  const CommandResult result = run("fast", "512");
  expect_one_line(result, 1,
                  "cuBLASLt: the plan, made with --numerics fast, needs it: "
                  "QUERN_CUBLASLT=/nowhere/libcublasLt.so.13 cannot be loaded");
  EXPECT_THAT(result.err, HasSubstr("use --numerics exact, or install the CUDA toolkit"));
  // What has no such step fails later, for want of kernels.
  EXPECT_THAT(run("fast", "64").err, Not(HasSubstr("cuBLASLt")));
  EXPECT_THAT(run("exact", "512").err, Not(HasSubstr("cuBLASLt")));
}

}  // namespace
}  // namespace quern::test
