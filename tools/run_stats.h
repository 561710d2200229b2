#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine.h"
#include "runtime/generate.h"
#include "tools/common.h"

namespace quern::tools {

/// The lines that --stats prints to stderr: stages, kernels compiled and loaded, speeds, peak
/// memory.
std::string stats_text(const LoadedModel& model, const Generation& run);

/// Largest resident size of this process so far, in bytes.
uint64_t peak_resident_bytes();

}  // namespace quern::tools
