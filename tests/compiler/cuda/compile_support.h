#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "compiler/cuda/cuda_compiler.h"
#include "compiler/cuda/nvrtc.h"

/// Skips with NVRTC's own line where there is none; with QUERN_REQUIRE_NVRTC that is a failure.
#define QUERN_NEED_NVRTC()                                               \
  do {                                                                   \
    const std::string problem = cuda::Nvrtc::problem();                  \
    if (!problem.empty()) {                                              \
      ASSERT_EQ(std::getenv("QUERN_REQUIRE_NVRTC"), nullptr) << problem; \
      GTEST_SKIP() << problem;                                           \
    }                                                                    \
  } while (0)

namespace quern::test {

/// A number of a kernel's compile record.
inline uint64_t record_number(const CompiledKernel& kernel, std::string_view name) {
  for (const auto& [key, value] : kernel.record) {
    if (key != name) continue;
    uint64_t number = 0;
    const auto end = std::from_chars(value.data(), value.data() + value.size(), number);
    EXPECT_EQ(end.ec, std::errc{}) << name << " is " << value;
    return number;
  }
  ADD_FAILURE() << "no " << name << " in the record";
  return 0;
}

}  // namespace quern::test
