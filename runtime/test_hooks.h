#pragma once

#include <atomic>
#include <cstdint>

namespace quern {

/// For tests: the launch with this number (counted from now on, 0 is the next) fails, once.
/// Negative: none.
extern std::atomic<int64_t> fail_at_launch;

}  // namespace quern
