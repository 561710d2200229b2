#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include "models/error.h"

namespace quern::cuda {
namespace {

// CUdevice_attribute and CUfunction_attribute values of the driver API.
constexpr int attribute_multiprocessors = 16;
constexpr int attribute_major = 75;
constexpr int attribute_minor = 76;
constexpr int function_attribute_dynamic_shared = 8;
// CUevent_flags and CUstreamCaptureMode.
constexpr unsigned event_without_timing = 2;
constexpr int capture_of_this_thread = 1;
// CUlaunchAttributeID.
constexpr int attribute_programmatic_serialization = 6;

}  // namespace

int Device::count() {
  int count = 0;
  check(Driver::get().cuDeviceGetCount(&count), "CUDA devices");
  return count;
}

std::shared_ptr<Device> Device::open(int index) {
  const Driver& driver = Driver::get();
  const int devices = count();
  if (index < 0 || index >= devices) {
    throw Error(ErrorKind::usage, fmt::format("--device cuda:{}", index),
                fmt::format("this machine has {} GPU(s)", devices),
                "count from 0, or use --device cpu");
  }
  std::shared_ptr<Device> device(new Device);
  check(driver.cuDeviceGet(&device->handle_, index), "CUDA device");
  char name[256] = {};
  check(driver.cuDeviceGetName(name, sizeof(name) - 1, device->handle_), "CUDA device");
  device->name_ = name;
  int major = 0, minor = 0, multiprocessors = 0;
  check(driver.cuDeviceGetAttribute(&major, attribute_major, device->handle_), device->name_);
  check(driver.cuDeviceGetAttribute(&minor, attribute_minor, device->handle_), device->name_);
  check(driver.cuDeviceGetAttribute(&multiprocessors, attribute_multiprocessors, device->handle_),
        device->name_);
  device->compute_capability_ = static_cast<uint32_t>(major * 10 + minor);
  device->multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  check(driver.cuDevicePrimaryCtxRetain(&device->context_, device->handle_), device->name_);
  device->use();
  return device;
}

Device::~Device() {
  if (context_ != nullptr) Driver::get().cuDevicePrimaryCtxRelease(handle_);
}

void Device::use() const {
  check(Driver::get().cuCtxSetCurrent(context_), name_);
}

void Device::use_to_release() const noexcept {
  Driver::get().cuCtxSetCurrent(context_);
}

Device::Memory Device::memory() const {
  use();
  size_t free_bytes = 0, total_bytes = 0;
  check(Driver::get().cuMemGetInfo(&free_bytes, &total_bytes), name_);
  return {.free_bytes = free_bytes, .total_bytes = total_bytes};
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, std::string_view what)
    : device_(std::move(device)), bytes_(bytes) {
  device_->use();
  check(Driver::get().cuMemAlloc(&address_, bytes == 0 ? 1 : bytes),
        fmt::format("{} MiB of device memory for {}", bytes >> 20, what));
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ == 0) return;
  device_->use_to_release();
  Driver::get().cuMemFree(address_);
}

PinnedBuffer::PinnedBuffer(std::shared_ptr<Device> device, uint64_t bytes)
    : device_(std::move(device)), bytes_(bytes) {
  device_->use();
  void* data = nullptr;
  check(Driver::get().cuMemHostAlloc(&data, bytes == 0 ? 1 : bytes, 0),
        fmt::format("{} MiB of pinned memory", bytes >> 20));
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  device_->use_to_release();
  Driver::get().cuMemFreeHost(data_);
}

StreamQueue::StreamQueue(std::shared_ptr<Device> device) : device_(std::move(device)) {
  device_->use();
  check(Driver::get().cuStreamCreate(&stream_, 1 /* does not wait for the default stream */),
        device_->name());
}

StreamQueue::~StreamQueue() {
  if (stream_ == nullptr) return;
  device_->use_to_release();
  Driver::get().cuStreamDestroy(stream_);
}

void StreamQueue::synchronize() const {
  check(Driver::get().cuStreamSynchronize(stream_), device_->name());
}

void StreamQueue::copy_to_device(DevicePointer to, std::span<const std::byte> from) const {
  check(Driver::get().cuMemcpyHtoDAsync(to, from.data(), from.size(), stream_),
        "copy to the device");
}

void StreamQueue::copy_to_host(std::span<std::byte> to, DevicePointer from) const {
  check(Driver::get().cuMemcpyDtoHAsync(to.data(), from, to.size(), stream_),
        "copy from the device");
}

void StreamQueue::copy_on_device(DevicePointer to, DevicePointer from, uint64_t bytes) const {
  check(Driver::get().cuMemcpyDtoDAsync(to, from, bytes, stream_), "copy on the device");
}

void StreamQueue::fill(DevicePointer to, unsigned char value, uint64_t bytes) const {
  check(Driver::get().cuMemsetD8Async(to, value, bytes, stream_), "fill of device memory");
}

Event::Event(const std::shared_ptr<Device>& device) : device_(device) {
  device_->use();
  check(Driver::get().cuEventCreate(&event_, event_without_timing), device_->name());
}

Event::Event(Event&& other) noexcept : device_(std::move(other.device_)), event_(other.event_) {
  other.event_ = nullptr;
}

Event::~Event() {
  if (event_ == nullptr) return;
  device_->use_to_release();
  Driver::get().cuEventDestroy(event_);
}

void Event::record(const StreamQueue& stream) const {
  check(Driver::get().cuEventRecord(event_, stream.handle()), device_->name());
}

void Event::synchronize() const {
  check(Driver::get().cuEventSynchronize(event_), device_->name());
}

LaunchGraph::LaunchGraph(std::shared_ptr<Device> device, const StreamQueue& stream,
                         const std::function<void()>& enqueue)
    : device_(std::move(device)) {
  const Driver& driver = Driver::get();
  const std::string thing = fmt::format("launch graph on {}", device_->name());
  device_->use();
  check(driver.cuStreamBeginCapture(stream.handle(), capture_of_this_thread), thing);
  Graph graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    if (driver.cuStreamEndCapture(stream.handle(), &graph) == 0) driver.cuGraphDestroy(graph);
    throw;
  }
  check(driver.cuStreamEndCapture(stream.handle(), &graph), thing);
  const Result result = driver.cuGraphInstantiate(&executable_, graph, 0);
  driver.cuGraphDestroy(graph);
  check(result, thing);
}

LaunchGraph::~LaunchGraph() {
  if (executable_ == nullptr) return;
  device_->use_to_release();
  Driver::get().cuGraphExecDestroy(executable_);
}

void LaunchGraph::launch(const StreamQueue& stream) const {
  check(Driver::get().cuGraphLaunch(executable_, stream.handle()), "launch graph");
}

LoadedKernel::LoadedKernel(std::shared_ptr<Device> device, std::span<const std::byte> cubin,
                           uint32_t shared_bytes, std::string_view what)
    : device_(std::move(device)), what_(what) {
  const Driver& driver = Driver::get();
  device_->use();
  check(driver.cuModuleLoadData(&module_, cubin.data()), what_);
  try {
    check(driver.cuModuleGetFunction(&function_, module_, kernel_symbol), what_);
    if (shared_bytes > 48 * 1024) {
      check(driver.cuFuncSetAttribute(function_, function_attribute_dynamic_shared,
                                      static_cast<int>(shared_bytes)),
            what_);
    }
  } catch (...) {
    driver.cuModuleUnload(module_);
    throw;
  }
}

LoadedKernel::LoadedKernel(LoadedKernel&& other) noexcept
    : device_(std::move(other.device_)),
      module_(other.module_),
      function_(other.function_),
      what_(std::move(other.what_)) {
  other.module_ = nullptr;
}

LoadedKernel::~LoadedKernel() {
  if (module_ == nullptr) return;
  device_->use_to_release();
  Driver::get().cuModuleUnload(module_);
}

void LoadedKernel::launch(const StreamQueue& stream, uint32_t grid_x, uint32_t grid_y,
                          uint32_t threads, uint32_t shared_bytes, const KernelArgs& args,
                          bool early) const {
  KernelArgs copy = args;
  void* parameters[] = {&copy};
  LaunchAttribute begin_early{
      .id = attribute_programmatic_serialization, .padding = {}, .value = {}};
  begin_early.value.number = 1;
  const bool can = early && device_->compute_capability() >= 90;
  const LaunchConfig config{.grid_x = grid_x,
                            .grid_y = grid_y,
                            .grid_z = 1,
                            .block_x = threads,
                            .block_y = 1,
                            .block_z = 1,
                            .shared_bytes = shared_bytes,
                            .stream = stream.handle(),
                            .attributes = &begin_early,
                            .n_attributes = can ? 1U : 0U};
  check(Driver::get().cuLaunchKernelEx(&config, function_, parameters, nullptr), what_);
}

Stopwatch::Stopwatch(std::shared_ptr<Device> device) : device_(std::move(device)) {
  device_->use();
  check(Driver::get().cuEventCreate(&begin_, 0), device_->name());
  const Result result = Driver::get().cuEventCreate(&end_, 0);
  if (result != 0) Driver::get().cuEventDestroy(begin_);
  check(result, device_->name());
}

Stopwatch::~Stopwatch() {
  device_->use_to_release();
  Driver::get().cuEventDestroy(begin_);
  Driver::get().cuEventDestroy(end_);
}

void Stopwatch::start(const StreamQueue& stream) {
  check(Driver::get().cuEventRecord(begin_, stream.handle()), device_->name());
}

double Stopwatch::stop_us(const StreamQueue& stream) {
  check(Driver::get().cuEventRecord(end_, stream.handle()), device_->name());
  check(Driver::get().cuEventSynchronize(end_), device_->name());
  float ms = 0;
  check(Driver::get().cuEventElapsedTime(&ms, begin_, end_), device_->name());
  return ms * 1000.0;
}

}  // namespace quern::cuda
