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
#include "tests/gpu/support/compile.h"
#include "tests/gpu/support/need_gpu.h"

namespace quern::test {

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

/// A spec's kernel for this GPU, or a given one (a mutant), and its launches.
class Kernel {
 public:
  Kernel(const spec::AnySpec& spec, spec::LaunchShape shape) : Kernel(compiled(spec), shape) {}
  Kernel(const CompiledKernel& kernel, spec::LaunchShape shape)
      : shape_(shape), loaded_(gpu(), kernel.code, shape.shared_bytes, "a test kernel") {}

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

  /// Microseconds of a launch: all of `variants` (the same work on different memory, so that caches
  /// stay cold) one after the other, the median of `repeats` such rounds after one that is not
  /// counted.
  double time(std::vector<cuda::KernelArgs> variants, const cuda::RunState& state, uint32_t grid_x,
              uint32_t grid_y, int repeats = 5) {
    Array<cuda::RunState> device_state(std::vector<cuda::RunState>{state});
    cuda::StreamQueue stream(gpu());
    cuda::Stopwatch watch(gpu());
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
      watch.start(stream);
      for (cuda::KernelArgs& args : variants) {
        args.state = device_state.pointer();
        loaded_.launch(stream, grid_x, grid_y, shape_.threads, shape_.shared_bytes, args);
      }
      const double us = watch.stop_us(stream);
      if (i > 0) times.push_back(us / static_cast<double>(variants.size()));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  spec::LaunchShape shape_;
  cuda::LoadedKernel loaded_;
};

/// Default arguments: no scales, no counter.
inline cuda::KernelArgs plain_args() {
  cuda::KernelArgs args{};
  args.x_scale = args.out_scale = args.weight_scale = 1;
  return args;
}

/// Element k of a token of an f16 operand.
inline size_t operand_index(uint32_t k, uint32_t token, uint32_t operand_rows) {
  return (static_cast<size_t>(k / 64) * operand_rows + token) * 64 +
         ((k / 8 % 8 ^ (token & 7)) * 8) + k % 8;
}

/// Host image of an f16 operand (docs/gpu.md) from row-major values.
inline std::vector<uint16_t> make_operand(const std::vector<uint16_t>& rows, uint32_t tokens,
                                          uint32_t k, uint32_t operand_rows) {
  const uint32_t slabs = (k + 63) / 64;
  std::vector<uint16_t> operand(static_cast<size_t>(slabs) * operand_rows * 64, 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < k; ++i) {
      operand[operand_index(i, t, operand_rows)] = rows[static_cast<size_t>(t) * k + i];
    }
  }
  return operand;
}

}  // namespace quern::test
