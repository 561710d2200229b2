#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "runtime/cuda/device.h"
#include "templates/spec/attention_launch.h"
#include "templates/spec/gemm_launch.h"

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

/// Typed device memory for tests.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : buffer_(gpu(), count * sizeof(T), "a test"), count_(count) {}
  explicit Array(const std::vector<T>& values) : Array(values.size()) { upload(values); }
  void upload(const std::vector<T>& values) {
    cuda::StreamQueue stream(gpu());
    stream.copy_to_device(buffer_.address(), std::as_bytes(std::span(values)));
    stream.synchronize();
  }
  /// Every byte 0xff: a NaN in every float, so that what was not written shows.
  void poison() {
    cuda::StreamQueue stream(gpu());
    stream.fill(buffer_.address(), 0xff, buffer_.bytes());
    stream.synchronize();
  }
  void zero() {
    cuda::StreamQueue stream(gpu());
    stream.fill(buffer_.address(), 0, buffer_.bytes());
    stream.synchronize();
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    cuda::StreamQueue stream(gpu());
    stream.copy_to_host(std::as_writable_bytes(std::span(values)), buffer_.address());
    stream.synchronize();
    return values;
  }
  T* pointer() const { return static_cast<T*>(buffer_.pointer()); }

 private:
  cuda::DeviceBuffer buffer_;
  size_t count_;
};

/// Compiles a spec for this GPU and launches it.
class Kernel {
 public:
  Kernel(const spec::AnySpec& spec, spec::LaunchShape shape)
      : shape_(shape),
        compiled_(cuda::compile_kernel(
            spec, cuda::make_target(cuda::target_for_device(gpu()->compute_capability()).name),
            true)),
        loaded_(gpu(), compiled_.code, shape.shared_bytes, "a test kernel") {}

  /// Runs with the grid given and waits; returns the device time in microseconds (the median of
  /// `runs`).
  double run(cuda::KernelArgs args, const cuda::RunState& state, uint32_t grid_x, uint32_t grid_y,
             int runs = 1) {
    Array<cuda::RunState> device_state(std::vector<cuda::RunState>{state});
    args.state = device_state.pointer();
    cuda::StreamQueue stream(gpu());
    cuda::Stopwatch watch(gpu());
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) {
      watch.start(stream);
      loaded_.launch(stream, grid_x, grid_y, shape_.threads, shape_.shared_bytes, args);
      times.push_back(watch.stop_us(stream));
    }
    stream.synchronize();
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  double run(const cuda::KernelArgs& args, const cuda::RunState& state, int runs = 1) {
    return run(args, state, shape_.grid_x, shape_.grid_y, runs);
  }
  const CompiledKernel& compiled() const { return compiled_; }

 private:
  spec::LaunchShape shape_;
  CompiledKernel compiled_;
  cuda::LoadedKernel loaded_;
};

/// Default arguments: no scales, no counter.
inline cuda::KernelArgs plain_args() {
  cuda::KernelArgs args{};
  args.x_scale = args.out_scale = args.weight_scale = 1;
  return args;
}

/// Host image of an f16 operand (docs/gpu.md) from row-major values.
inline std::vector<uint16_t> make_operand(const std::vector<uint16_t>& rows, uint32_t tokens,
                                          uint32_t k, uint32_t operand_rows) {
  const uint32_t slabs = (k + 63) / 64;
  std::vector<uint16_t> operand(static_cast<size_t>(slabs) * operand_rows * 64, 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t piece = (i >> 3) & 7;
      operand[(static_cast<size_t>(i >> 6) * operand_rows + t) * 64 + ((piece ^ (t & 7)) << 3) +
              (i & 7)] = rows[static_cast<size_t>(t) * k + i];
    }
  }
  return operand;
}

}  // namespace quern::test
