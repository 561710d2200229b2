#pragma once

// A worker's scratch in the router: one token's probabilities, padded to 16.

#include "templates/spec/moe.h"

namespace quern::cpu {

constexpr unsigned long router_scratch_bytes(const spec::RouterSpec& s) {
  return (s.n_expert + 15ul) / 16 * 64;
}

}  // namespace quern::cpu
