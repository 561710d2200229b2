#pragma once

#include <cstdint>
#include <string>

#include "compiler/cuda/cuda_compiler.h"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// Fills in how a GEMM is tiled on a target: tile_tokens, tile_cells, stages and decoders; what it
/// computes (`math`: segments, k, epilogue, ...) stays. `token_class`: tokens a launch has at most,
/// 8 (decode) or 64, 128, 256 (prefill tiles). The tiling changes no bit of the result. Where a
/// prefill tile of the class does not fit the target's shared memory the next smaller one is taken;
/// `reason` (may be null) gets one line that says what decided. Throws Error (`does_not_fit`) where
/// nothing fits. Figures: docs/measurements-gpu.md.
spec::GemmSpec choose_gemm_tile(spec::GemmSpec math, uint32_t token_class,
                                const TargetTraits& target, std::string* reason = nullptr);

}  // namespace quern::cuda
