#pragma once

#include <span>

namespace quern::cuda {

/// A device header (templates/cuda, templates/spec) as it was when Quern was built. Both end with a
/// zero.
struct EmbeddedHeader {
  const char* name;  ///< As it is included: "templates/cuda/gemm.cuh".
  const char* text;
};
std::span<const EmbeddedHeader> embedded_headers();

}  // namespace quern::cuda
