#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan.h"

namespace quern {

/// What decides whether a state belongs to a plan: the model, the target, the kernels and the
/// layout of the state (SHA-256, hex).
std::string state_fingerprint(const Plan& plan);

/// A session's state as bytes: pages that are all zero are left out, so that a short sequence in a
/// long context stays small. With the fingerprint, the position and a digest over everything.
std::vector<std::byte> encode_state(std::span<const std::byte> state, std::string_view fingerprint,
                                    uint32_t position);

/// An image that has been checked.
struct StateImage {
  struct Run {
    uint64_t offset;
    std::span<const std::byte> bytes;  ///< Points into the image.
  };
  uint32_t position = 0;
  std::vector<Run> runs;
};
/// Throws Error (`failed`) where the image is damaged, of another plan, or of a state of other
/// size.
StateImage decode_state(std::span<const std::byte> image, std::string_view fingerprint,
                        uint64_t state_bytes, uint32_t capacity);

/// Copies the pages of `from` that are not all zero to `to`, which is zero and as long.
void copy_nonzero(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace quern
