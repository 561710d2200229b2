#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine.h"
#include "tools/common.h"

namespace quern::tools {

/// Counts and times of one `run`, for --stats.
struct RunStats {
  uint64_t prompt_tokens = 0;
  double prompt_ms = 0;
  uint64_t generated_tokens =
      0;  ///< Tokens that came from a launch of their own: all but the first.
  double generation_ms = 0;
};

/// The lines that --stats prints to stderr: stages, kernels compiled and loaded, speeds, peak
/// memory.
std::string stats_text(const LoadedModel& model, const RunStats& run);

/// Largest resident size of this process so far, in bytes.
uint64_t peak_resident_bytes();

}  // namespace quern::tools
