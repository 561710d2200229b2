// --device auto: what keeps a model from the GPU is said, and it runs on the CPU. On the stand-in
// driver of tests/support/fake_cuda.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/fixtures.h"
#include "tests/tools/command.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;

CommandResult run_one_token(const std::string& model, const std::string& device,
                            const std::map<std::string, std::string>& environment) {
  CommandOptions options;
  options.environment = environment;
  options.environment.emplace("QUERN_CUDA_DRIVER", QUERN_FAKE_CUDA);
  return quern({"run", data_file("fixtures/" + model).string(), "--tokens", "1,2", "-n", "1",
                "--temp", "0", "--device", device},
               options);
}

/// The same output as on the CPU, and one warning that holds `reason`.
void expect_cpu_because(const std::string& reason, const std::string& model,
                        const std::map<std::string, std::string>& environment) {
  SCOPED_TRACE(reason);
  const CommandResult result = run_one_token(model, "auto", environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, run_one_token(model, "cpu", {}).out);
  EXPECT_EQ(result.error_lines(), 1U) << result.err;
  EXPECT_THAT(result.err, HasSubstr("warning: runs on the CPU, not on the GPU: "));
  EXPECT_THAT(result.err, HasSubstr(reason));
}

TEST(GpuChoice, a_gpu_that_cannot_run_the_model_leaves_it_to_the_cpu_with_a_warning) {
  expect_cpu_because("no GPU target of Quern runs on it", "llama.gguf", {{"FAKE_CUDA_CC", "75"}});
  expect_cpu_because("NVRTC, which compiles its kernels, was not found", "llama.gguf",
                     {{"QUERN_NVRTC", "/nowhere/libnvrtc.so.13"}});
}

TEST(GpuChoice, without_a_driver_the_cpu_is_taken_without_a_word) {
  for (const char* driver : {"/nowhere/libcuda.so.1", QUERN_INCOMPLETE_CUDA}) {
    const CommandResult result =
        run_one_token("llama.gguf", "auto", {{"QUERN_CUDA_DRIVER", driver}});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, run_one_token("llama.gguf", "cpu", {}).out);
  }
}

}  // namespace
}  // namespace quern::test
