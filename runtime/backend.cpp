#include "runtime/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "models/error.h"
#include "runtime/test_hooks.h"

namespace quern {

std::atomic<int64_t> fail_at_launch{-1};

uint32_t index_of_name(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  const auto index = static_cast<uint32_t>(found - names.begin());
  if (found == names.end()) names.push_back(name);
  return index;
}

size_t steps_before_failure(size_t n_steps) {
  const int64_t at = fail_at_launch.load(std::memory_order_relaxed);
  if (at < 0) return n_steps;
  const auto n = static_cast<int64_t>(n_steps);
  fail_at_launch.store(at < n ? -1 : at - n, std::memory_order_relaxed);
  return static_cast<size_t>(std::min(at, n));
}

void fail_at_step(const Plan& plan, size_t step) {
  throw Error(ErrorKind::failed, fmt::format("launch {} ({})", step, plan.steps[step].name),
              "a test made it fail");
}

}  // namespace quern
