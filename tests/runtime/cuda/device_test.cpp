// Device, memory, streams, kernels and the stopwatch, on the stand-in driver.

#include "runtime/cuda/device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "models/error.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace quern::test {
namespace {

using cuda::Device;
using cuda::DeviceBuffer;
using cuda::KernelArgs;
using cuda::LoadedKernel;
using cuda::PinnedBuffer;
using cuda::RunState;
using cuda::Stopwatch;
using cuda::StreamQueue;

class CudaDevice : public FakeCudaTest {
 protected:
  /// The error that a call throws; a usage error named "none" where it throws none.
  template <class Call>
  static Error error_of(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    return {ErrorKind::usage, "none", "thrown"};
  }
};

std::vector<std::byte> counting(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST_F(CudaDevice, says_what_it_is) {
  const auto device = Device::open(0);
  EXPECT_EQ(device->name(), "Stand-in GPU");
  EXPECT_EQ(device->compute_capability(), 90U);
  EXPECT_EQ(device->multiprocessors(), 132U);
  EXPECT_EQ(Device::count(), 1);
}

TEST_F(CudaDevice, the_context_goes_with_the_last_owner) {
  auto device = Device::open(0);
  auto buffer = std::make_unique<DeviceBuffer>(device, 100, "a test");
  device.reset();
  EXPECT_EQ(cuda_.calls("cuDevicePrimaryCtxRelease_v2"), 0U);
  buffer.reset();
  EXPECT_EQ(cuda_.calls("cuDevicePrimaryCtxRelease_v2"), 1U);
}

TEST_F(CudaDevice, memory_is_counted) {
  cuda_.set_memory(1 << 20);
  const auto device = Device::open(0);
  EXPECT_EQ(device->memory().free_bytes, 1U << 20);
  {
    const DeviceBuffer buffer(device, 4096, "a test");
    EXPECT_EQ(device->memory().free_bytes, (1U << 20) - 4096);
    EXPECT_EQ(device->memory().total_bytes, 1U << 20);
    EXPECT_EQ(cuda_.live_bytes(), 4096U);
  }
  EXPECT_EQ(device->memory().free_bytes, 1U << 20);
}

TEST_F(CudaDevice, memory_that_cannot_be_had_leaves_nothing_behind) {
  cuda_.set_memory(1 << 20);
  const auto device = Device::open(0);
  const Error error = error_of([&] { DeviceBuffer(device, 2 << 20, "the weights"); });
  EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
  EXPECT_EQ(error.thing(), "2 MiB of device memory for the weights");
  cuda_.fail_call("cuMemHostAlloc", 0, cuda_out_of_memory);
  EXPECT_EQ(error_of([&] { PinnedBuffer(device, 3 << 20); }).thing(), "3 MiB of pinned memory");
  EXPECT_EQ(cuda_.live_bytes(), 0U);
  EXPECT_EQ(cuda_.pinned_bytes(), 0U);
}

TEST_F(CudaDevice, a_buffer_is_freed_once_however_it_was_moved) {
  const auto device = Device::open(0);
  {
    DeviceBuffer a(device, 100, "a test");
    const uint64_t address = a.address();
    DeviceBuffer b(std::move(a));
    EXPECT_EQ(a.address(), 0U);  // NOLINT: what a moved-from buffer holds is the point
    EXPECT_EQ(a.bytes(), 0U);
    EXPECT_EQ(b.address(), address);
    DeviceBuffer c(device, 200, "a test");
    c = std::move(b);
    EXPECT_EQ(c.address(), address);
    c = DeviceBuffer();
    EXPECT_EQ(c.address(), 0U);

    PinnedBuffer p(device, 100);
    PinnedBuffer q(std::move(p));
    EXPECT_EQ(p.data(), nullptr);  // NOLINT
    p = std::move(q);
    EXPECT_EQ(p.bytes(), 100U);
  }
  EXPECT_EQ(cuda_.live_bytes(), 0U);
  EXPECT_EQ(cuda_.pinned_bytes(), 0U);
  EXPECT_EQ(cuda_.calls("cuMemFree_v2"), 2U);
  EXPECT_EQ(cuda_.calls("cuMemFreeHost"), 1U);
}

TEST_F(CudaDevice, buffers_of_no_bytes_are_sound) {
  const auto device = Device::open(0);
  const DeviceBuffer buffer(device, 0, "nothing");
  const PinnedBuffer pinned(device, 0);
  EXPECT_NE(buffer.address(), 0U);
  EXPECT_EQ(buffer.bytes(), 0U);
}

TEST_F(CudaDevice, copies_and_fills_arrive) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const DeviceBuffer a(device, 256, "a test"), b(device, 256, "a test");
  stream.copy_to_device(a.address(), counting(256));
  stream.fill(a.address() + 16, 0x77, 16);
  stream.copy_on_device(b.address() + 128, a.address(), 128);
  std::vector<std::byte> out(128);
  stream.copy_to_host(out, b.address() + 128);
  stream.synchronize();
  std::vector<std::byte> expected = counting(128);
  std::fill(expected.begin() + 16, expected.begin() + 32, std::byte{0x77});
  EXPECT_EQ(out, expected);
}

TEST_F(CudaDevice, copies_out_of_range_are_reported) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const DeviceBuffer buffer(device, 256, "a test"), next(device, 256, "a test");
  const uint64_t at = buffer.address();
  std::vector<std::byte> host(257);
  EXPECT_EQ(error_of([&] { stream.copy_to_device(at, host); }).what(),
            std::string("copy to the device: invalid argument (CUDA_ERROR_INVALID_VALUE)"));
  EXPECT_EQ(error_of([&] { stream.copy_to_host(host, at); }).thing(), "copy from the device");
  EXPECT_EQ(error_of([&] { stream.copy_on_device(next.address(), at + 1, 256); }).thing(),
            "copy on the device");
  EXPECT_EQ(error_of([&] { stream.copy_on_device(next.address() + 1, at, 256); }).thing(),
            "copy on the device");
  EXPECT_EQ(error_of([&] { stream.fill(at + 256, 0, 1); }).thing(), "fill of device memory");
  EXPECT_NE(take_problems().find("257 bytes at"), std::string::npos);
  const PinnedBuffer pinned(device, 100);
  EXPECT_EQ(error_of([&] { stream.copy_to_host({pinned.data(), 101}, at); }).thing(),
            "copy from the device");
  EXPECT_NE(take_problems(), "");
  stream.synchronize();  // no failure stays
}

TEST_F(CudaDevice, pinned_memory_is_read_and_written_when_the_work_runs) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const DeviceBuffer buffer(device, 4, "a test");
  const PinnedBuffer in(device, 4), out(device, 4);
  std::memset(in.data(), 1, 4);
  std::memset(out.data(), 0, 4);
  stream.copy_to_device(buffer.address(), {in.data(), 4});
  stream.copy_to_host({out.data(), 4}, buffer.address());
  EXPECT_EQ(out.data()[0], std::byte{0});
  std::memset(in.data(), 2, 4);  // too early: a GPU may or may not see this, the stand-in does
  stream.synchronize();
  EXPECT_EQ(out.data()[0], std::byte{2});
}

TEST_F(CudaDevice, a_kernel_gets_its_arguments) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const DeviceBuffer data(device, 4096, "a test"), state(device, sizeof(RunState), "a test");
  const RunState run{.n_tokens = 5, .start_position = 11, .n_outputs = 1, .reserved = 0};
  stream.copy_to_device(state.address(), std::as_bytes(std::span(&run, 1)));
  const LoadedKernel kernel(device, fake_cubin("gemm 64"), 100 << 10, "a kernel");
  KernelArgs args{};
  args.buffers[0] = data.pointer();
  args.buffers[15] = data.pointer(4095);
  args.state = static_cast<const RunState*>(state.pointer());
  args.operand_rows = 64;
  args.out_scale = 0.5F;
  kernel.launch(stream, 3, 2, 128, 100 << 10, args);
  args.operand_rows = 0;  // the launch has its own copy
  EXPECT_EQ(cuda_.launches(), 0U);
  stream.synchronize();
  ASSERT_EQ(cuda_.launches(), 1U);
  const fake_cuda::Launch launch = cuda_.launch(0);
  EXPECT_STREQ(launch.kernel, "gemm 64");
  EXPECT_EQ(launch.grid[0], 3U);
  EXPECT_EQ(launch.grid[1], 2U);
  EXPECT_EQ(launch.grid[2], 1U);
  EXPECT_EQ(launch.block[0], 128U);
  EXPECT_EQ(launch.shared_bytes, 100U << 10);
  EXPECT_EQ(launch.args.buffers[15], data.pointer(4095));
  EXPECT_EQ(launch.args.operand_rows, 64U);
  EXPECT_EQ(launch.args.out_scale, 0.5F);
  EXPECT_EQ(launch.state.n_tokens, 5U);
  EXPECT_EQ(launch.state.start_position, 11U);
}

TEST_F(CudaDevice, launches_begin_early_where_the_gpu_can) {
  for (const char* capability : {"80", "90"}) {
    setenv("FAKE_CUDA_CC", capability, 1);
    cuda_.reset();
    const auto device = Device::open(0);
    const StreamQueue stream(device);
    const LoadedKernel kernel(device, fake_cubin("norm"), 0, "the norm");
    kernel.launch(stream, 1, 1, 32, 0, {}, true);
    kernel.launch(stream, 1, 1, 32, 0, {}, false);
    stream.synchronize();
    EXPECT_EQ(cuda_.launch(0).early, std::string(capability) == "90" ? 1U : 0U);
    EXPECT_EQ(cuda_.launch(1).early, 0U);
  }
  unsetenv("FAKE_CUDA_CC");
}

TEST_F(CudaDevice, a_kernels_buffers_must_live) {
  auto device = Device::open(0);
  {
    const StreamQueue stream(device);
    const LoadedKernel kernel(device, fake_cubin("norm"), 0, "a kernel");
    const DeviceBuffer data(device, 64, "a test");
    KernelArgs args{};
    args.buffers[2] = data.pointer(64);  // one past its end
    kernel.launch(stream, 1, 1, 32, 0, args);
    const Error error = error_of([&] { stream.synchronize(); });
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
    EXPECT_NE(take_problems().find("of 'norm': buffer 2 at"), std::string::npos);
    // The context is lost until everything in it is gone.
    EXPECT_EQ(error_of([&] { stream.fill(data.address(), 0, 64); }).kind(), ErrorKind::failed);
    EXPECT_EQ(cuda_.launches(), 0U);
  }
  device.reset();
  device = Device::open(0);
  const StreamQueue stream(device);
  EXPECT_NO_THROW(stream.synchronize());
}

TEST_F(CudaDevice, a_launch_that_no_gpu_takes_is_refused) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const LoadedKernel kernel(device, fake_cubin("norm"), 0, "the norm");
  const KernelArgs args{};
  for (const auto& launch : {std::array<uint32_t, 4>{0, 1, 32, 0},
                             {1, 65536, 32, 0},
                             {1, 1, 0, 0},
                             {1, 1, 1025, 0},
                             {1, 1, 32, (48 << 10) + 1}}) {
    const Error error =
        error_of([&] { kernel.launch(stream, launch[0], launch[1], launch[2], launch[3], args); });
    EXPECT_EQ(error.what(), std::string("the norm: invalid argument (CUDA_ERROR_INVALID_VALUE)"));
  }
  EXPECT_NE(take_problems(), "");
  stream.synchronize();
  EXPECT_EQ(cuda_.launches(), 0U);
}

TEST_F(CudaDevice, what_is_no_cubin_is_refused) {
  const auto device = Device::open(0);
  EXPECT_EQ(error_of([&] { LoadedKernel(device, counting(64), 0, "the norm"); }).what(),
            std::string("the norm: device kernel image is invalid (CUDA_ERROR_INVALID_IMAGE)"));
}

TEST_F(CudaDevice, what_cannot_be_made_whole_leaves_nothing_behind) {
  const auto device = Device::open(0);
  EXPECT_EQ(error_of([&] { LoadedKernel(device, fake_cubin("a"), 228 << 10, "a"); }).kind(),
            ErrorKind::failed);  // more shared memory than the GPU has
  cuda_.fail_call("cuModuleGetFunction", 0, 500);
  EXPECT_EQ(error_of([&] { LoadedKernel(device, fake_cubin("a"), 0, "a"); }).kind(),
            ErrorKind::failed);
  cuda_.fail_call("cuEventCreate", 1, cuda_out_of_memory);
  EXPECT_EQ(error_of([&] { Stopwatch watch(device); }).kind(), ErrorKind::does_not_fit);
}

TEST_F(CudaDevice, anything_may_be_destroyed_in_another_thread) {
  auto device = Device::open(0);
  auto buffer = std::make_unique<DeviceBuffer>(device, 64, "a test");
  auto pinned = std::make_unique<PinnedBuffer>(device, 64);
  auto stream = std::make_unique<StreamQueue>(device);
  auto kernel = std::make_unique<LoadedKernel>(device, fake_cubin("a"), 0, "a");
  auto watch = std::make_unique<Stopwatch>(device);
  auto event = std::make_unique<cuda::Event>(device);
  auto graph = std::make_unique<cuda::LaunchGraph>(device, *stream, [] {});
  for (const std::function<void()>& destroy : {std::function<void()>([&] { buffer.reset(); }),
                                               std::function<void()>([&] { pinned.reset(); }),
                                               std::function<void()>([&] { graph.reset(); }),
                                               std::function<void()>([&] { stream.reset(); }),
                                               std::function<void()>([&] { kernel.reset(); }),
                                               std::function<void()>([&] { watch.reset(); }),
                                               std::function<void()>([&] { event.reset(); })}) {
    std::thread(destroy).join();
  }
  device.reset();
}

TEST_F(CudaDevice, a_moved_kernel_is_unloaded_once) {
  const auto device = Device::open(0);
  {
    LoadedKernel a(device, fake_cubin("norm"), 0, "the norm");
    const LoadedKernel b(std::move(a));
    const StreamQueue stream(device);
    b.launch(stream, 1, 1, 32, 0, {});
    stream.synchronize();
  }
  EXPECT_EQ(cuda_.calls("cuModuleUnload"), 1U);
  EXPECT_EQ(cuda_.launches(), 1U);
}

TEST_F(CudaDevice, a_kernel_that_fails_shows_at_the_next_synchronisation) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  const LoadedKernel kernel(device, fake_cubin("norm"), 0, "the norm");
  cuda_.fail_launch(1);
  kernel.launch(stream, 1, 1, 32, 0, {});
  stream.synchronize();
  kernel.launch(stream, 1, 1, 32, 0, {});
  EXPECT_EQ(error_of([&] { stream.synchronize(); }).what(),
            std::string("Stand-in GPU: unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED); load "
                        "the model again, or use --device cpu"));
  EXPECT_TRUE(cuda_.faults_happened());
  EXPECT_EQ(error_of([&] { kernel.launch(stream, 1, 1, 32, 0, {}); }).thing(), "the norm");
}

TEST_F(CudaDevice, a_stopwatch_gives_time) {
  const auto device = Device::open(0);
  const StreamQueue stream(device);
  Stopwatch watch(device);
  watch.start(stream);
  EXPECT_GE(watch.stop_us(stream), 0.0);
}

TEST_F(CudaDevice, two_threads_share_a_device) {
  const auto device = Device::open(0);
  const LoadedKernel kernel(device, fake_cubin("norm"), 0, "the norm");
  const auto work = [&](unsigned char value) {
    device->use();
    const StreamQueue stream(device);
    for (int i = 0; i < 20; ++i) {
      const DeviceBuffer buffer(device, 1024, "a test");
      stream.fill(buffer.address(), value, 1024);
      kernel.launch(stream, 1, 1, 32, 0, {});
      std::vector<std::byte> out(1024);
      stream.copy_to_host(out, buffer.address());
      stream.synchronize();
      EXPECT_EQ(out, std::vector<std::byte>(1024, std::byte{value}));
    }
  };
  std::thread other(work, 1);
  work(2);
  other.join();
  EXPECT_EQ(cuda_.launches(), 40U);
}

}  // namespace
}  // namespace quern::test
