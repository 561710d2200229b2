#pragma once

#include <cstdint>
#include <string>

#include "compiler/cuda/cuda_compiler.h"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// Fills in how a GEMM is tiled on a target: tile_tokens, tile_cells, stages and how warps share
/// row groups; what it computes (`math`: segments, k, epilogue, ...) stays. `token_class`: the
/// number of tokens that the kernel is meant for; 8 is the decode kernel, which takes no more, with
/// any other the kernel takes any number and is fastest near that one. The tiling changes no bit of
/// the result. `reason` (may be null) gets one line that says what decided. Throws Error
/// (`does_not_fit`) where nothing fits the target's shared memory, `usage` for less than 8.
/// Figures: docs/measurements-gpu.md.
spec::GemmSpec choose_gemm_tile(spec::GemmSpec math, uint32_t token_class,
                                const TargetTraits& target, std::string* reason = nullptr);

}  // namespace quern::cuda
