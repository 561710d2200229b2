#pragma once

// Host only: the templates' bitcode, embedded when Quern is built (cmake/bitcode.cmake).

#include <cstddef>
#include <span>

namespace quern::cpu {

/// One template: its family, its bitcode without a spec, and the bitcode's SHA-256 (hex).
struct BitcodeRow {
  const char* family;
  const std::byte* data;
  size_t size;
  const char* digest;
};

/// Every template, in the order of templates/CMakeLists.txt.
std::span<const BitcodeRow> bitcode_table();

/// SHA-256 (hex) of the headers that fix how host and kernel talk, and of clang's options.
extern const char* const bitcode_abi_digest;
extern const char* const bitcode_options_digest;

}  // namespace quern::cpu
