#pragma once

#include <cstdint>
#include <vector>

#include "models/gguf/file.h"
#include "models/graph.h"

namespace quern::test {

/// Faults that no graph can express, for showing that the fixtures would catch them in a kernel.
struct ReferenceFaults {
  bool raw_gate = false;            ///< Attention's output times the gate, not its sigmoid.
  bool convolve_past_silu = false;  ///< The convolution's state is kept after SiLU.
  bool decay_after_update = false;  ///< The state decays after the new key is written.
  bool read_before_update = false;  ///< The query reads the state before the new key is written.
};

/// The logits that a graph computes for these tokens from position 0, one row a token, or one a
/// position asked for. Every operation is written out naively in double from the formulas of FACTS,
/// over weights decoded to f32: it holds graphs to the fixtures before any kernel exists, and is an
/// oracle for the kernels.
std::vector<std::vector<double>> reference_logits(const gguf::File& file, const ModelGraph& graph,
                                                  const std::vector<int32_t>& tokens,
                                                  const std::vector<int32_t>& positions = {},
                                                  ReferenceFaults faults = {});

}  // namespace quern::test
