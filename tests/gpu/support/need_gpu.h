#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "models/error.h"
#include "runtime/cuda/device.h"

namespace quern::test {

/// The machine's GPU, or null where there is none: tests then skip with the driver's line. Where
/// QUERN_REQUIRE_GPU is set a missing GPU fails instead, so that a run on a GPU machine cannot pass
/// by skipping.
inline std::shared_ptr<cuda::Device> gpu() {
  static std::shared_ptr<cuda::Device> device = [] {
    try {
      return cuda::Device::open(0);
    } catch (const Error&) {
      return std::shared_ptr<cuda::Device>();
    }
  }();
  return device;
}

#define QUERN_NEED_GPU()                                                                        \
  do {                                                                                          \
    if (::quern::test::gpu() == nullptr) {                                                      \
      ASSERT_EQ(std::getenv("QUERN_REQUIRE_GPU"), nullptr) << ::quern::cuda::Driver::problem(); \
      GTEST_SKIP() << "no GPU: " << ::quern::cuda::Driver::problem();                           \
    }                                                                                           \
  } while (0)

}  // namespace quern::test
