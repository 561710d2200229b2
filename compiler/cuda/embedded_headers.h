#pragma once

#include <span>
#include <string_view>

namespace quern::cuda {

/// A device header (templates/cuda, templates/spec) as it was when Quern was built. Both end with a
/// zero.
struct EmbeddedHeader {
  std::string_view name;  ///< As it is included: "templates/cuda/gemm.cuh".
  std::string_view text;
};
std::span<const EmbeddedHeader> embedded_headers();

}  // namespace quern::cuda
