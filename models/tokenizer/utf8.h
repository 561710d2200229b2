#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quern::utf8 {

/// What stands at the front of a byte string.
struct Step {
  enum class Kind {
    character,   ///< A well-formed sequence.
    ill_formed,  ///< Bytes that no continuation can repair: a maximal subpart (Unicode 3.9, D93b).
    incomplete,  ///< The text ends inside a sequence that is well formed so far.
  };
  Kind kind;
  size_t length;   ///< Bytes it takes, at least 1.
  char32_t value;  ///< The code point, where `kind` is `character`.
};

/// Classifies the front of `text`, which must not be empty. Overlong forms, surrogates and values
/// above U+10FFFF are ill-formed.
Step next(std::string_view text);

/// Appends the encoding of a code point.
void append(std::string& text, char32_t value);

/// Bytes of the longest prefix of `text` that is well-formed UTF-8.
size_t valid_prefix(std::string_view text);

/// `text` with every maximal ill-formed subpart, and an incomplete end, replaced by U+FFFD.
std::string sanitize(std::string_view text);

/// Moves what is complete in `pending` into the result, ill-formed parts as U+FFFD, and leaves an
/// incomplete end (at most three bytes) behind.
std::string take_complete(std::string& pending);

}  // namespace quern::utf8
