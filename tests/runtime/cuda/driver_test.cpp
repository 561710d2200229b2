// What a user reads where the driver, a device or its memory is missing. A process loads its driver
// once: every case asks a fresh one, whose line and exit code the parent checks.

#include "runtime/cuda/driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "models/error.h"
#include "runtime/cuda/device.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace quern::test {
namespace {

using ::testing::ExitedWithCode;
using Environment = std::map<std::string, std::string>;

/// In a death test's process: opens a device as the command does, and takes memory of it. Prints
/// the error's line and exits with its code.
[[noreturn]] void open_device(const Environment& environment, int index = 0, uint64_t bytes = 0) {
  setenv("QUERN_CUDA_DRIVER", QUERN_FAKE_CUDA, 1);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  try {
    const auto device = cuda::Device::open(index);
    if (bytes != 0) const cuda::DeviceBuffer buffer(device, bytes, "the weights");
  } catch (const Error& error) {
    std::fprintf(stderr, "<%s>\n", error.what());
    _exit(error.exit_code());
  }
  _exit(0);
}

/// Death tests start the program anew, so that no driver is loaded in them.
class DriverDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(DriverDeathTest, a_sound_driver_opens) {
  EXPECT_EXIT(open_device({}), ExitedWithCode(0), "");
  EXPECT_EXIT(open_device({{"FAKE_CUDA_VERSION", "12000"}}), ExitedWithCode(0), "");
}

TEST_F(DriverDeathTest, a_named_library_that_is_missing_is_named) {
  EXPECT_EXIT(open_device({{"QUERN_CUDA_DRIVER", "/nowhere/libcuda.so.1"}}), ExitedWithCode(1),
              "<CUDA driver: QUERN_CUDA_DRIVER=/nowhere/libcuda.so.1 cannot be loaded \\(.*\\); "
              "unset it for the machine's own driver, or use --device cpu>");
}

TEST_F(DriverDeathTest, without_the_variable_the_machines_own_driver_is_looked_for) {
  // An empty variable is none. On a machine with a GPU its driver opens.
  const auto ends_well_or_says_what_is_missing = [](int status) {
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 1);
  };
  EXPECT_EXIT(open_device({{"QUERN_CUDA_DRIVER", ""}}), ends_well_or_says_what_is_missing,
              access("/dev/nvidiactl", F_OK) == 0
                  ? ""
                  : "<CUDA driver: .*; install NVIDIA's driver, or use --device cpu>");
}

TEST_F(DriverDeathTest, a_library_without_a_function_is_too_old) {
  EXPECT_EXIT(open_device({{"QUERN_CUDA_DRIVER", QUERN_INCOMPLETE_CUDA}}), ExitedWithCode(1),
              "<CUDA driver: it has no function cuGetErrorName; update the driver to one that "
              "supports CUDA 12 or newer>");
}

TEST_F(DriverDeathTest, a_driver_before_cuda_12_is_too_old) {
  EXPECT_EXIT(open_device({{"FAKE_CUDA_VERSION", "11080"}}), ExitedWithCode(1),
              "<CUDA driver: it supports CUDA 11.8, Quern needs 12.0; update the driver, or use "
              "--device cpu>");
}

TEST_F(DriverDeathTest, a_machine_without_a_gpu_is_told) {
  EXPECT_EXIT(open_device({{"FAKE_CUDA_DEVICES", "0"}}), ExitedWithCode(1),
              "<CUDA driver: it finds no GPU; use --device cpu>");
}

TEST_F(DriverDeathTest, a_driver_that_does_not_start_gives_its_word) {
  EXPECT_EXIT(
      open_device({{"FAKE_CUDA_INIT", "803"}}), ExitedWithCode(1),
      "<CUDA driver: it does not start \\(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\\); see whether "
      "nvidia-smi works, or use --device cpu>");
  EXPECT_EXIT(open_device({{"FAKE_CUDA_INIT", "12345"}}), ExitedWithCode(1),
              "it does not start \\(\\?\\)");
}

TEST_F(DriverDeathTest, a_device_out_of_range_is_wrong_usage) {
  EXPECT_EXIT(
      open_device({{"FAKE_CUDA_DEVICES", "2"}}, 7), ExitedWithCode(2),
      "<--device cuda:7: this machine has 2 GPU\\(s\\); count from 0, or use --device cpu>");
  EXPECT_EXIT(open_device({{"FAKE_CUDA_DEVICES", "2"}}, 1), ExitedWithCode(0), "");
  EXPECT_EXIT(open_device({}, -1), ExitedWithCode(2), "--device cuda:-1");
}

TEST_F(DriverDeathTest, what_does_not_fit_the_device_is_named_with_its_size) {
  const Environment environment = {{"FAKE_CUDA_MEMORY", "10485760"}};
  EXPECT_EXIT(open_device(environment, 0, 10485761), ExitedWithCode(4),
              "<10 MiB of device memory for the weights: out of memory "
              "\\(CUDA_ERROR_OUT_OF_MEMORY\\); use a smaller --ctx, --chunk or --kv type, or free "
              "device memory>");
  EXPECT_EXIT(open_device(environment, 0, 10485760), ExitedWithCode(0), "");
}

TEST_F(DriverDeathTest, problem_is_the_same_line) {
  const auto tell = [] {
    setenv("QUERN_CUDA_DRIVER", QUERN_FAKE_CUDA, 1);
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    std::fprintf(stderr, "<%s>\n", cuda::Driver::problem().c_str());
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    _exit(0);
  };
  EXPECT_EXIT(tell(), ExitedWithCode(0), "<CUDA driver: it finds no GPU; use --device cpu>");
}

using DriverCheck = FakeCudaTest;

Error error_of(int result) {
  try {
    cuda::check(result, "the thing");
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::usage, "none", "thrown"};
}

TEST_F(DriverCheck, a_driver_call_that_failed_gives_the_drivers_words) {
  EXPECT_NO_THROW(cuda::check(0, "the thing"));
  EXPECT_EQ(error_of(1).what(),
            std::string("the thing: invalid argument (CUDA_ERROR_INVALID_VALUE)"));
  EXPECT_EQ(error_of(1).kind(), ErrorKind::failed);
  EXPECT_EQ(error_of(12345).what(), std::string("the thing: unknown error (?)"));
  EXPECT_EQ(error_of(cuda_out_of_memory).kind(), ErrorKind::does_not_fit);
}

TEST_F(DriverCheck, a_lost_context_has_a_remedy) {
  for (const int result : {cuda_illegal_address, cuda_launch_failed}) {
    EXPECT_EQ(error_of(result).kind(), ErrorKind::failed);
    EXPECT_EQ(error_of(result).remedy(), "load the model again, or use --device cpu");
  }
}

TEST_F(DriverCheck, the_version_is_the_drivers) {
  EXPECT_EQ(cuda::Driver::get().version(), 13000);
}

}  // namespace
}  // namespace quern::test
