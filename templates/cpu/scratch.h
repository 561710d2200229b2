#pragma once

// Host only: scratch bytes of a worker (a multiple of 64), one overload a family that needs any.

#include "templates/cpu/attention_scratch.h"
#include "templates/cpu/delta_scratch.h"
#include "templates/cpu/router_scratch.h"

namespace quern::cpu {

constexpr unsigned long worker_scratch_bytes(const spec::AttentionSpec& s) {
  return attention_scratch(s).bytes;
}
constexpr unsigned long worker_scratch_bytes(const spec::DeltaSpec& s) {
  return delta_scratch_bytes(s);
}
constexpr unsigned long worker_scratch_bytes(const spec::RouterSpec& s) {
  return router_scratch_bytes(s);
}

}  // namespace quern::cpu
