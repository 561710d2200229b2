#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_cuda/control.h"

// The stand-in driver library for tests: makes Driver::get() load it, and asks and steers it.
namespace quern::test {

/// CUresult values that tests inject.
inline constexpr int cuda_out_of_memory = 2, cuda_illegal_address = 700, cuda_launch_failed = 719;

/// How an injected failure shows.
enum class Failing {
  at_once,         ///< The call returns the error, that is all.
  later,           ///< Launches: the next synchronisation returns it.
  for_good,        ///< The call returns it, and so does every later one.
  later_for_good,  ///< Launches: what a faulty kernel does on a GPU.
};

/// The stand-in, as loaded in this process. It queues work and runs it as late as the API allows,
/// so that a missing synchronisation shows; fresh memory is all 0xff; nothing is computed: kernels
/// write what the test's callback writes.
class FakeCuda {
 public:
  /// Sets QUERN_CUDA_DRIVER and loads the library, once. Throws std::runtime_error where this
  /// process has another driver loaded already.
  static FakeCuda& get();

  /// Forgets faults, problems, leaks, launches and the callback, and reads the FAKE_CUDA_*
  /// variables again (README of the folder). What is allocated stays.
  void reset();
  /// Device memory from now on.
  void set_memory(uint64_t bytes);

  // ---- what happened ----
  uint64_t launches() const;  ///< That ran since reset(), nodes of graphs included.
  fake_cuda::Launch launch(uint64_t index) const;
  std::vector<fake_cuda::Launch> launches_since(uint64_t index) const;
  /// Calls of a driver function by its exported name ("cuMemAlloc_v2"), or of all.
  uint64_t calls(const char* function = nullptr) const;
  uint64_t live_bytes() const;
  uint64_t pinned_bytes() const;
  std::string problems() const;  ///< A line for each misuse; empty when there was none.
  std::string leaks() const;     ///< A line for all that lives or outlived its context.

  // ---- what is to happen ----
  /// The launch with this number, 0 being the next, fails.
  void fail_launch(uint64_t number, int error = cuda_launch_failed,
                   Failing how = Failing::later_for_good);
  /// The call with this number of a driver function (null: of any that needs a context) fails.
  void fail_call(const char* function, uint64_t number, int error, Failing how = Failing::at_once);
  void fail_allocation(uint64_t number) { fail_call("cuMemAlloc_v2", number, cuda_out_of_memory); }
  void clear_faults();
  /// Whether every fault asked for has happened.
  bool faults_happened() const;
  /// Runs at every launch, in the order of the work; may write device memory (`memory`).
  void on_launch(std::function<void(const fake_cuda::Launch&)> callback);
  /// Device memory as host memory; throws std::out_of_range where the range is in no allocation.
  std::byte* memory(const void* device_address, uint64_t bytes) const;

 private:
  FakeCuda();
  std::function<void(const fake_cuda::Launch&)> callback_;
};

/// Bytes that the stand-in takes for a compiled kernel; launches of it carry `name`.
std::vector<std::byte> fake_cubin(std::string_view name);

/// Cases on the stand-in. At the end of each nothing may have been misused and nothing may live:
/// `take_problems` takes those that a case means to provoke.
class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  /// The problems so far; they are forgiven.
  std::string take_problems();

  FakeCuda& cuda_ = FakeCuda::get();

 private:
  size_t forgiven_ = 0;
};

}  // namespace quern::test
