#pragma once

#include <cstdint>
#include <functional>

#include "models/gguf/writer.h"
#include "models/synth/shapes.h"

namespace quern::synth {

struct SynthOptions {
  uint64_t seed = 1;
  uint32_t threads = 0;  ///< 0: one for each hardware thread. Never changes a byte.
  /// Bytes of tensors passed on so far, and of all.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

/// Makes a GGUF file of a published model's exact shape and quant mix with random weights, for runs
/// where the real file cannot be had: the structure is that of synth_gguf.py's files, the values
/// are finite and depend on the seed, the tensor's name and the position alone. The bytes go to
/// `sink` in order, made on several threads a few MiB ahead.
void write_synthetic(const Shape& shape, const Mix& mix, const SynthOptions& options,
                     const gguf::TensorToWrite::Sink& sink);

}  // namespace quern::synth
