#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"

namespace quern {

/// A size with the metadata keys that it comes from, so that a tensor of another shape can say
/// which key disagrees with it.
struct Size {
  uint64_t value = 0;
  std::string origin;  ///< "llama.attention.head_count x llama.attention.key_length"

  uint32_t u32() const { return static_cast<uint32_t>(value); }
};

/// Products of sizes. Every size of a model is at most 2^31; a larger product throws Error
/// (`bad_model`) naming the keys.
Size operator*(const Size& a, const Size& b);
Size operator*(uint32_t factor, const Size& size);
Size operator+(const Size& a, const Size& b);

/// The bounds, inclusive, that an integer key must keep.
struct Bounds {
  uint64_t low = 1;
  uint64_t high = uint64_t{1} << 24;
};

/// The values that a float key may take: above `low` (or from it on) up to `high`.
struct Range {
  double low = 0;
  double high = 1;
  bool with_low = false;
};

/// The metadata of one architecture. Keys are given without the architecture's prefix, except by
/// the names that say `global`. Every look-up checks type and range; errors (`bad_model`) name the
/// whole key.
class Keys {
 public:
  Keys(const gguf::Metadata& metadata, std::string architecture);

  const std::string& architecture() const { return architecture_; }
  /// "rope.freq_base" -> "llama.rope.freq_base".
  std::string full(std::string_view key) const;
  bool has(std::string_view key) const;

  /// An integer, required.
  Size size(std::string_view key, Bounds bounds = {}) const;
  /// An integer, or the fallback where the key is absent.
  Size size_or(std::string_view key, const Size& fallback, Bounds bounds = {}) const;
  /// An integer that a file may give as one value or as an array with one value a block. Blocks
  /// that differ are refused by name. Required, or with a fallback.
  Size uniform(std::string_view key, uint64_t n_blocks, Bounds bounds = {}) const;
  Size uniform_or(std::string_view key, uint64_t n_blocks, const Size& fallback,
                  Bounds bounds = {}) const;

  /// A float, required or with a fallback (which is not checked).
  double real(std::string_view key, Range range) const;
  double real_or(std::string_view key, double fallback, Range range) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;
  bool flag_or(std::string_view key, bool fallback) const;
  std::vector<bool> flags(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  bool is_array(std::string_view key) const;

  /// The length of an array of strings outside the architecture's prefix, or 0 where absent.
  uint64_t global_strings(std::string_view key) const;

  /// Refuses a float other than zero: it would ask for a computation that the family does not have.
  void must_be_zero(std::string_view key) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view reason,
                           std::string_view remedy = {}) const;
  /// Keys asked for so far, present or not, sorted.
  std::vector<std::string> asked() const { return {asked_.begin(), asked_.end()}; }

 private:
  const std::string& note(std::string_view key) const;

  const gguf::Metadata& metadata_;
  std::string architecture_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace quern
