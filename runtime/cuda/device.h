#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/driver.h"
#include "templates/cuda/abi.h"

namespace quern::cuda {

/// One GPU and its primary context. Shared by everything that lives on it.
class Device {
 public:
  /// Opens device `index`. Throws Error (`usage`) where there is none such, `failed` where the
  /// driver is missing or unfit.
  static std::shared_ptr<Device> open(int index);
  static int count();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  uint32_t compute_capability() const { return compute_capability_; }  ///< 90 for 9.0
  uint32_t multiprocessors() const { return multiprocessors_; }
  struct Memory {
    uint64_t free_bytes, total_bytes;
  };
  Memory memory() const;
  /// Makes the context current in this thread; every entry point does this first.
  void use() const;
  /// The same for what is being destroyed, in whatever thread: the driver frees nothing without a
  /// current context.
  void use_to_release() const noexcept;

 private:
  Device() = default;
  DeviceHandle handle_ = 0;
  Context context_ = nullptr;
  std::string name_;
  uint32_t compute_capability_ = 0, multiprocessors_ = 0;
};

/// Device memory with one owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error (`does_not_fit`) naming `what` where the memory cannot be had.
  DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, std::string_view what);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();
  DevicePointer address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  void* pointer(uint64_t offset = 0) const { return std::bit_cast<void*>(address_ + offset); }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<Device> device_;
  DevicePointer address_ = 0;
  uint64_t bytes_ = 0;
};

/// Pinned host memory with one owner.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(std::shared_ptr<Device> device, uint64_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedBuffer();
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void swap(PinnedBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

/// A stream of launches and copies, in order.
class StreamQueue {
 public:
  explicit StreamQueue(std::shared_ptr<Device> device);
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;
  Stream handle() const { return stream_; }
  void synchronize() const;
  void copy_to_device(DevicePointer to, std::span<const std::byte> from) const;
  void copy_to_host(std::span<std::byte> to, DevicePointer from) const;
  void copy_on_device(DevicePointer to, DevicePointer from, uint64_t bytes) const;
  void fill(DevicePointer to, unsigned char value, uint64_t bytes) const;

 private:
  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
};

/// A point of a stream that the host can wait for; reached from the start.
class Event {
 public:
  explicit Event(const std::shared_ptr<Device>& device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  void record(const StreamQueue& stream) const;
  void synchronize() const;

 private:
  std::shared_ptr<Device> device_;
  EventHandle event_ = nullptr;
};

/// Launches and copies recorded from a stream, repeated with one call.
class LaunchGraph {
 public:
  /// Records what `enqueue` gives to the stream, which runs none of it.
  LaunchGraph(std::shared_ptr<Device> device, const StreamQueue& stream,
              const std::function<void()>& enqueue);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  void launch(const StreamQueue& stream) const;

 private:
  std::shared_ptr<Device> device_;
  GraphExec executable_ = nullptr;
};

/// A kernel loaded from a verified cubin.
class LoadedKernel {
 public:
  /// None: for what a library computes.
  LoadedKernel() = default;
  /// `shared_bytes`: the most dynamic shared memory it will be launched with.
  LoadedKernel(std::shared_ptr<Device> device, std::span<const std::byte> cubin,
               uint32_t shared_bytes, std::string_view what);
  ~LoadedKernel();
  LoadedKernel(LoadedKernel&& other) noexcept;
  LoadedKernel& operator=(LoadedKernel&&) = delete;

  /// `early`: where the device can (sm_90), it may begin before the launch ahead of it has ended:
  /// the kernel waits for that by itself (templates/cuda/ptx/dependency.cuh).
  void launch(const StreamQueue& stream, uint32_t grid_x, uint32_t grid_y, uint32_t threads,
              uint32_t shared_bytes, const KernelArgs& args, bool early = false) const;

 private:
  std::shared_ptr<Device> device_;
  Module module_ = nullptr;
  Function function_ = nullptr;
  std::string what_;
};

/// Device time between two points of a stream.
class Stopwatch {
 public:
  explicit Stopwatch(std::shared_ptr<Device> device);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(const StreamQueue& stream);
  /// Waits for the work since `start` and returns its time in microseconds.
  double stop_us(const StreamQueue& stream);

 private:
  std::shared_ptr<Device> device_;
  EventHandle begin_ = nullptr, end_ = nullptr;
};

}  // namespace quern::cuda
