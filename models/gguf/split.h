#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "models/gguf/metadata.h"

// Models in several files, named STEM-00001-of-000NN.gguf. The first part holds all metadata; each
// part holds split.no (from 0), split.count and split.tensors.count (of the whole set).
namespace quern::gguf {

inline constexpr std::string_view kSplitNumberKey = "split.no";
inline constexpr std::string_view kSplitCountKey = "split.count";
inline constexpr std::string_view kSplitTensorsKey = "split.tensors.count";

/// A part's place as its name gives it.
struct SplitName {
  std::string stem;
  uint64_t number;  ///< From 0, as split.no has it; the name itself counts from 1.
  uint64_t count;
};

/// Takes "…-00002-of-00003.gguf" apart, or nothing where the file is not so named.
std::optional<SplitName> parse_split_name(const std::filesystem::path& path);
/// The path of part `number` (from 0) beside `path`.
std::filesystem::path split_part_path(const std::filesystem::path& path, const SplitName& name,
                                      uint64_t number);

/// split.count, or 1 where the file is whole.
uint64_t split_count(const Metadata& metadata, std::string_view file);
/// split.no, which a part must have.
uint64_t split_number(const Metadata& metadata, std::string_view file);
/// Throws Error (`bad_model`) unless the part says that it is `number` of `count`.
void check_split_part(const Metadata& metadata, std::string_view file, uint64_t number,
                      uint64_t count);
/// Throws Error (`bad_model`) unless the set holds as many tensors as the first part says.
void check_split_total(const Metadata& metadata, std::string_view file, uint64_t tensors);

}  // namespace quern::gguf
