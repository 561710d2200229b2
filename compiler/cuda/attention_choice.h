#pragma once

#include "compiler/cuda/cuda_compiler.h"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {

/// Fills in how attention is cut on a target: block_keys and segment_keys, which belong to the
/// numerics and are the same on every target, and `warps` of a flash prefill block, fewer where
/// shared memory is small, which changes no bit. What it computes stays, and so do `path` and
/// `decode`. False where the heads are too wide for the target's shared memory.
bool choose_attention(spec::AttentionSpec& s, const TargetTraits& target);

}  // namespace quern::cuda
