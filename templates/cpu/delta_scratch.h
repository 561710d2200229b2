#pragma once

// A worker's scratch in the delta rule: shared by the kernel and by cpu::scratch_bytes.

#include "templates/spec/gdn.h"

namespace quern::cpu {

/// Columns of a V head's state that a worker carries through the chunk.
inline constexpr unsigned delta_columns = 32;

/// A slice of the state [dim][delta_columns], then the token's k and q (normalised), padded to 16.
constexpr unsigned long delta_scratch_bytes(const spec::DeltaSpec& s) {
  const unsigned long padded = (s.dim + 15ul) / 16 * 16;
  return 4ul * s.dim * delta_columns + 2 * 4 * padded;
}

}  // namespace quern::cpu
