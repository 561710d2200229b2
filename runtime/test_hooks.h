#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace quern {

/// For tests: the launch with this number (counted from now on, 0 is the next) fails, once.
/// Negative: none.
extern std::atomic<int64_t> fail_at_launch;

/// A step of the CPU's executor that has just run.
struct FinishedStep {
  size_t step = 0;  ///< Index into Plan::steps.
  uint32_t rows = 0;
  uint32_t start_position = 0;
  void* const* buffers = nullptr;  ///< As in Step::buffers.
};

/// For tests and probes: called after each step on the CPU while the workers wait, so that it sees
/// the step's values before another overwrites them. It must not throw. Empty: none. Set only
/// while nothing runs.
extern std::function<void(const FinishedStep&)> after_cpu_step;

}  // namespace quern
