#include "models/gguf/split.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace quern::gguf {
namespace {

/// A look-up whose error names the file as well as the key.
uint64_t uint_of(const Metadata& metadata, std::string_view key, std::string_view file) {
  try {
    return metadata.get_uint(key);
  } catch (const Error& error) {
    throw Error(ErrorKind::bad_model, file, fmt::format("{} {}", error.thing(), error.reason()));
  }
}

std::optional<uint64_t> five_digits(std::string_view text) {
  if (text.size() != 5 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  uint64_t value = 0;
  for (const char c : text) value = value * 10 + static_cast<uint64_t>(c - '0');
  return value;
}

}  // namespace

std::optional<SplitName> parse_split_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kEnd = ".gguf";
  constexpr size_t kTail = std::string_view("-00001-of-00001.gguf").size();
  if (name.size() <= kTail || !name.ends_with(kEnd)) return std::nullopt;
  const std::string_view tail = std::string_view(name).substr(name.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  const auto number = five_digits(tail.substr(1, 5));
  const auto count = five_digits(tail.substr(10, 5));
  if (!number || !count || *number == 0 || *number > *count) return std::nullopt;
  return SplitName{
      .stem = name.substr(0, name.size() - kTail), .number = *number - 1, .count = *count};
}

std::filesystem::path split_part_path(const std::filesystem::path& path, const SplitName& name,
                                      uint64_t number) {
  return path.parent_path() /
         fmt::format("{}-{:05}-of-{:05}.gguf", name.stem, number + 1, name.count);
}

uint64_t split_count(const Metadata& metadata, std::string_view file) {
  return metadata.has(kSplitCountKey) ? uint_of(metadata, kSplitCountKey, file) : 1;
}

uint64_t split_number(const Metadata& metadata, std::string_view file) {
  return uint_of(metadata, kSplitNumberKey, file);
}

void check_split_part(const Metadata& metadata, std::string_view file, uint64_t number,
                      uint64_t count) {
  const auto expect = [&](std::string_view key, uint64_t wanted) {
    const uint64_t value = uint_of(metadata, key, file);
    if (value != wanted) {
      throw Error(ErrorKind::bad_model, file,
                  fmt::format("metadata key {} is {} where the set needs {}", key, value, wanted),
                  "check that all parts belong to one model");
    }
  };
  expect(kSplitCountKey, count);
  expect(kSplitNumberKey, number);
}

void check_split_total(const Metadata& metadata, std::string_view file, uint64_t tensors) {
  const uint64_t claimed = uint_of(metadata, kSplitTensorsKey, file);
  if (claimed == tensors) return;
  throw Error(ErrorKind::bad_model, file,
              fmt::format("metadata key {} is {} but the parts hold {} tensors", kSplitTensorsKey,
                          claimed, tensors),
              "check that all parts belong to one model");
}

}  // namespace quern::gguf
