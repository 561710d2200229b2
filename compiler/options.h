#pragma once

#include <cstdint>
#include <string>

#include "compiler/kernel.h"

namespace quern {

enum class Numerics { exact, fast };

/// The plan options of DESIGN section 7, resolved from the command line. 0 and empty mean "choose".
struct PlanOptions {
  std::string device = "auto";  ///< auto | cpu | cuda[:I]
  uint32_t context = 0;         ///< 0: min(model's, 4096)
  uint32_t chunk = 0;           ///< Tokens a prefill launch; 0: 512, on the GPU 2048
  Numerics numerics = Numerics::exact;
  std::string attention = "auto";  ///< auto | flash | wave
  std::string kv =
      "auto";  ///< auto | f16 | bf16 | q8_0 | f32; auto is f32 on the CPU, f16 on the GPU
  int32_t gpu_layers = -1;  ///< -1: auto
  bool all_logits = false;  ///< Plan for logits of every row of a chunk, not of 1 row alone.
  /// Free memory of the GPU, where it is known: fast plans then keep decoded weights if there is
  /// room. Not a part of the plan, whose options have 0.
  uint64_t free_bytes = 0;
};

}  // namespace quern
