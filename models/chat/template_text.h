#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quern {

/// The text of a Jinja chat template, read for what it says literally: the formats of the known
/// families differ in a few strings, which are taken from here and not from a list of models.
class TemplateText {
 public:
  explicit TemplateText(std::string_view source);

  std::string_view source() const { return source_; }
  /// The text without blanks, with one kind of quotes and with "\n" for a line end, so that two
  /// ways to write one expression compare equal.
  std::string_view squeezed() const { return squeezed_; }
  bool contains(std::string_view text) const {
    return source_.find(text) != std::string_view::npos;
  }
  bool squeezed_contains(std::string_view text) const {
    return squeezed_.find(text) != std::string::npos;
  }

  /// All string literals of the template, unescaped, and its text outside of tags, in order.
  const std::vector<std::string>& literals() const { return literals_; }
  /// The first literal that is `word` once white space around it is taken away; empty if none is.
  std::string literal_around(std::string_view word) const;
  /// The literal that is first assigned to `variable` ("{% set variable = 'text' %}"), or empty.
  std::string assigned(std::string_view variable) const;
  /// The part behind the last mention of `word`, as a template of its own.
  TemplateText after_last(std::string_view word) const;

 private:
  std::string source_;
  std::string squeezed_;
  std::vector<std::string> literals_;
};

/// `text` without white space at both ends, as Jinja's `trim` does it for ASCII.
std::string_view trimmed(std::string_view text);

}  // namespace quern
