#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cpu/cpu_loader.h"

namespace quern::cpu {

/// Zeroed bytes on a 64-byte boundary, as the runtime's arenas are.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t count) : size_(count) {
    const size_t bytes = (count * sizeof(T) + 127) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::fill_n(reinterpret_cast<std::byte*>(data_.get()), bytes, std::byte{0});
  }
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_.get()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_;
};

/// A kernel compiled and loaded for tests and benchmarks.
class TestKernel {
 public:
  explicit TestKernel(const spec::AnySpec& spec, const Target& target = resolve_target("native"))
      : spec_(spec), code_(compile_kernel(spec, target)), function_(loader_.load(code_)) {}

  /// Runs one launch on `workers` threads. `args` needs neither worker, scratch nor next_tile.
  void run(KernelArgs args, const std::vector<void*>& buffers, uint32_t workers = 1) {
    const uint64_t slice = (cpu::scratch_bytes(spec_, args.n_tokens) + 63) / 64 * 64;
    if (scratch_ == nullptr || scratch_->size() < slice * workers) {
      scratch_ = std::make_unique<Aligned<std::byte>>(slice * workers);
    }
    uint32_t next = 0;
    args.buffers = buffers.data();
    args.n_workers = workers;
    args.next_tile = &next;
    args.scratch_bytes = slice;
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < workers; ++w) {
      args.worker = w;
      args.scratch = scratch_->data() + slice * w;
      if (w + 1 == workers) {
        function_(&args);
      } else {
        threads.emplace_back([this, args] { function_(&args); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

  const CompiledKernel& code() const { return code_; }

 private:
  spec::AnySpec spec_;
  CompiledKernel code_;
  KernelLoader loader_;
  KernelFunction function_;
  std::unique_ptr<Aligned<std::byte>> scratch_;
};

}  // namespace quern::cpu
