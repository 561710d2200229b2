// The stand-in driver itself: that it does what the driver API promises, and catches what it
// forbids.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "models/error.h"
#include "runtime/cuda/device.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace quern::test {
namespace {

using cuda::Device;
using cuda::DeviceBuffer;
using cuda::Driver;
using cuda::KernelArgs;
using cuda::LoadedKernel;
using cuda::PinnedBuffer;
using cuda::RunState;
using cuda::StreamQueue;

class FakeCudaDriver : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    device_ = Device::open(0);
    stream_ = std::make_unique<StreamQueue>(device_);
    kernel_ = std::make_unique<LoadedKernel>(device_, fake_cubin("norm"), 0, "norm");
  }
  void TearDown() override {
    kernel_.reset();
    stream_.reset();
    device_.reset();
    FakeCudaTest::TearDown();
  }

  void launch(const KernelArgs& args = {}) { kernel_->launch(*stream_, 1, 1, 32, 0, args); }
  void begin_capture() { EXPECT_EQ(driver_.cuStreamBeginCapture(stream_->handle(), 1), 0); }
  /// The graph of what was captured, ready to launch.
  cuda::GraphExec end_capture() {
    cuda::Graph graph = nullptr;
    cuda::GraphExec executable = nullptr;
    EXPECT_EQ(driver_.cuStreamEndCapture(stream_->handle(), &graph), 0);
    EXPECT_EQ(driver_.cuGraphInstantiate(&executable, graph, 0), 0);
    EXPECT_EQ(driver_.cuGraphDestroy(graph), 0);
    return executable;
  }
  int synchronize() { return driver_.cuStreamSynchronize(stream_->handle()); }

  const Driver& driver_ = Driver::get();
  std::shared_ptr<Device> device_;
  std::unique_ptr<StreamQueue> stream_;
  std::unique_ptr<LoadedKernel> kernel_;
};

TEST_F(FakeCudaDriver, what_is_captured_runs_when_its_graph_does) {
  const DeviceBuffer state(device_, sizeof(RunState), "a test");
  KernelArgs args{};
  args.state = static_cast<const RunState*>(state.pointer());
  begin_capture();
  launch(args);
  launch(args);
  cuda::GraphExec graph = end_capture();
  EXPECT_EQ(synchronize(), 0);
  EXPECT_EQ(cuda_.launches(), 0U);
  for (uint32_t position = 7; position < 9; ++position) {
    const RunState now{.n_tokens = 1, .start_position = position, .n_outputs = 1, .reserved = 0};
    stream_->copy_to_device(state.address(), std::as_bytes(std::span(&now, 1)));
    EXPECT_EQ(driver_.cuGraphLaunch(graph, stream_->handle()), 0);
  }
  EXPECT_EQ(synchronize(), 0);
  ASSERT_EQ(cuda_.launches(), 4U);
  EXPECT_EQ(cuda_.launch(1).state.start_position, 7U);
  EXPECT_EQ(cuda_.launch(2).state.start_position, 8U);
  EXPECT_EQ(cuda_.launch(2).in_graph, 1U);
  EXPECT_EQ(driver_.cuGraphExecDestroy(graph), 0);
}

TEST_F(FakeCudaDriver, a_graph_whose_memory_went_is_caught) {
  auto data = std::make_unique<DeviceBuffer>(device_, 64, "a test");
  KernelArgs args{};
  args.buffers[0] = data->pointer();
  begin_capture();
  launch(args);
  cuda::GraphExec graph = end_capture();
  data.reset();
  EXPECT_EQ(driver_.cuGraphLaunch(graph, stream_->handle()), 0);
  EXPECT_EQ(synchronize(), cuda_illegal_address);
  EXPECT_NE(take_problems(), "");
  EXPECT_EQ(driver_.cuGraphExecDestroy(graph), cuda_illegal_address);
}

TEST_F(FakeCudaDriver, waiting_or_allocating_spoils_a_capture) {
  for (const bool wait : {true, false}) {
    begin_capture();
    launch();
    cuda::DevicePointer address = 0;
    EXPECT_EQ(wait ? synchronize() : driver_.cuMemAlloc(&address, 64), 900);
    cuda::Graph graph = nullptr;
    EXPECT_EQ(driver_.cuStreamEndCapture(stream_->handle(), &graph), 901);
    EXPECT_EQ(graph, nullptr);
    EXPECT_NE(take_problems(), "");
  }
  EXPECT_EQ(synchronize(), 0);
}

TEST_F(FakeCudaDriver, a_capture_copies_pinned_memory_alone) {
  const DeviceBuffer data(device_, 4, "a test");
  const PinnedBuffer pinned(device_, 4);
  std::vector<std::byte> pageable(4);
  begin_capture();
  stream_->copy_to_device(data.address(), {pinned.data(), 4});
  cuda::GraphExec graph = end_capture();
  std::memset(pinned.data(), 5, 4);
  EXPECT_EQ(driver_.cuGraphLaunch(graph, stream_->handle()), 0);
  EXPECT_EQ(synchronize(), 0);
  EXPECT_EQ(*cuda_.memory(data.pointer(), 4), std::byte{5});
  EXPECT_EQ(driver_.cuGraphExecDestroy(graph), 0);

  begin_capture();
  EXPECT_THROW(stream_->copy_to_device(data.address(), pageable), Error);
  cuda::Graph none = nullptr;
  EXPECT_EQ(driver_.cuStreamEndCapture(stream_->handle(), &none), 901);
  EXPECT_NE(take_problems(), "");
}

TEST_F(FakeCudaDriver, a_stream_waits_for_anothers_event) {
  const StreamQueue other(device_);
  const DeviceBuffer data(device_, 1, "a test");
  const PinnedBuffer out(device_, 1);
  decltype(driver_.cuEventCreate) create = driver_.cuEventCreate;
  cuda::EventTag* event = nullptr;
  EXPECT_EQ(create(&event, 2), 0);
  other.fill(data.address(), 1, 1);
  EXPECT_EQ(driver_.cuEventRecord(event, other.handle()), 0);
  other.fill(data.address(), 2, 1);
  EXPECT_EQ(driver_.cuStreamWaitEvent(stream_->handle(), event, 0), 0);
  stream_->copy_to_host({out.data(), 1}, data.address());
  EXPECT_EQ(synchronize(), 0);
  EXPECT_EQ(*out.data(), std::byte{1});  // the second fill was not waited for
  EXPECT_EQ(driver_.cuEventSynchronize(event), 0);
  EXPECT_EQ(*cuda_.memory(data.pointer(), 1), std::byte{1});
  other.synchronize();
  EXPECT_EQ(*cuda_.memory(data.pointer(), 1), std::byte{2});
  EXPECT_EQ(driver_.cuEventDestroy(event), 0);
}

TEST_F(FakeCudaDriver, launches_fail_by_number_also_inside_graphs) {
  begin_capture();
  launch();
  launch();
  cuda::GraphExec graph = end_capture();
  for (uint64_t number = 0; number < 4; ++number) {
    cuda_.reset();
    cuda_.fail_launch(number, cuda_launch_failed, Failing::at_once);
    int failures = 0;
    for (int i = 0; i < 2; ++i) {
      failures += driver_.cuGraphLaunch(graph, stream_->handle()) == cuda_launch_failed ? 1 : 0;
    }
    EXPECT_EQ(failures, 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(cuda_.launches(), 2U);
    EXPECT_TRUE(cuda_.faults_happened());

    cuda_.reset();
    cuda_.fail_launch(number, cuda_launch_failed, Failing::later);
    EXPECT_EQ(driver_.cuGraphLaunch(graph, stream_->handle()), 0);
    EXPECT_EQ(driver_.cuGraphLaunch(graph, stream_->handle()), 0);
    EXPECT_EQ(synchronize(), cuda_launch_failed);
    EXPECT_EQ(synchronize(), 0);
  }
  EXPECT_EQ(driver_.cuGraphExecDestroy(graph), 0);
}

TEST_F(FakeCudaDriver, calls_fail_by_name_and_number) {
  cuda_.fail_call("cuStreamSynchronize", 1, cuda_launch_failed);
  EXPECT_EQ(synchronize(), 0);
  EXPECT_EQ(synchronize(), cuda_launch_failed);
  EXPECT_EQ(synchronize(), 0);
  cuda_.fail_allocation(1);
  const DeviceBuffer first(device_, 1, "a test");
  EXPECT_THROW(DeviceBuffer(device_, 1, "a test"), Error);
  cuda_.fail_call(nullptr, 0, 999, Failing::for_good);
  EXPECT_EQ(synchronize(), 999);
  EXPECT_EQ(synchronize(), 999);
}

TEST_F(FakeCudaDriver, a_thread_without_a_context_is_caught) {
  std::thread([&] { EXPECT_EQ(synchronize(), 201); }).join();
  EXPECT_NE(take_problems().find("no context is current in this thread"), std::string::npos);
}

TEST_F(FakeCudaDriver, what_is_not_freed_is_listed) {
  auto other = Device::open(0);
  cuda::DevicePointer address = 0;
  ASSERT_EQ(driver_.cuMemAlloc(&address, 100), 0);
  EXPECT_NE(cuda_.leaks().find("100 bytes of the device lives"), std::string::npos);
  EXPECT_EQ(driver_.cuMemFree(address), 0);
  EXPECT_EQ(cuda_.leaks().find("100 bytes"), std::string::npos);
  EXPECT_EQ(driver_.cuMemFree(address), 1);
  EXPECT_NE(take_problems().find("is no allocation"), std::string::npos);
}

TEST_F(FakeCudaDriver, a_callback_may_write_what_a_kernel_would) {
  const DeviceBuffer data(device_, 4, "a test");
  KernelArgs args{};
  args.buffers[0] = data.pointer();
  cuda_.on_launch([&](const fake_cuda::Launch& now) {
    std::memset(cuda_.memory(now.args.buffers[0], 4), 9, 4);
  });
  std::vector<std::byte> out(4);
  stream_->copy_to_host(out, data.address());
  EXPECT_EQ(out, std::vector<std::byte>(4, std::byte{0xff}));  // fresh memory
  launch(args);
  stream_->copy_to_host(out, data.address());
  EXPECT_EQ(out, std::vector<std::byte>(4, std::byte{9}));
}

}  // namespace
}  // namespace quern::test
