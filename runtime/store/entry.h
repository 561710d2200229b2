#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/kernel.h"

namespace quern::store {

/// Suffix of entry files: `<key digest>.kernel`.
inline constexpr std::string_view entry_suffix = ".kernel";
/// Prefix of files being written; the rest is the writer's pid and a number.
inline constexpr std::string_view temporary_prefix = ".tmp-";
/// Suffix that a bad entry gets when it is set aside.
inline constexpr std::string_view bad_suffix = ".bad";

/// Everything that an entry file holds.
struct DecodedEntry {
  CompiledKernel kernel;
  std::string family;
  std::string spec;  ///< Canonical text.
};

/// The image of an entry file.
std::vector<std::byte> encode(const CompiledKernel& kernel, std::string_view family,
                              std::string_view spec);
/// Checks and takes apart an entry's image. Throws Error (`failed`, thing = `name`) saying what is
/// wrong.
DecodedEntry decode(std::span<const std::byte> image, std::string_view name);

}  // namespace quern::store
