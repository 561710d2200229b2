#include "models/chat/template_text.h"

#include <algorithm>

namespace quern {
namespace {

constexpr std::string_view blanks = " \t\n\r\v\f";

/// The literal whose opening quote is at `at`; moves `at` behind its closing quote.
std::string read_literal(std::string_view source, size_t& at) {
  const char quote = source[at++];
  std::string text;
  while (at < source.size() && source[at] != quote) {
    char character = source[at++];
    if (character != '\\' || at == source.size()) {
      text += character;
      continue;
    }
    character = source[at++];
    switch (character) {
      case 'n':
        text += '\n';
        break;
      case 't':
        text += '\t';
        break;
      case 'r':
        text += '\r';
        break;
      case '\\':
      case '\'':
      case '"':
        text += character;
        break;
      default:  // As Python: an unknown escape stays as it is.
        text += '\\';
        text += character;
    }
  }
  if (at < source.size()) ++at;
  return text;
}

std::vector<std::string> read_literals(std::string_view source) {
  std::vector<std::string> literals;
  size_t at = 0;
  while (at < source.size()) {
    // Text up to the next tag.
    size_t tag = at;
    while (tag < source.size() &&
           !(source[tag] == '{' && tag + 1 < source.size() &&
             std::string_view("{%#").find(source[tag + 1]) != std::string_view::npos)) {
      ++tag;
    }
    if (tag > at) literals.emplace_back(source.substr(at, tag - at));
    if (tag == source.size()) break;
    const bool comment = source[tag + 1] == '#';
    const std::string_view close = comment ? "#}" : source[tag + 1] == '%' ? "%}" : "}}";
    at = tag + 2;
    while (at < source.size() && !source.substr(at).starts_with(close)) {
      if (!comment && (source[at] == '\'' || source[at] == '"')) {
        literals.push_back(read_literal(source, at));
      } else {
        ++at;
      }
    }
    at = std::min(source.size(), at + close.size());
  }
  return literals;
}

std::string squeeze(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\\' && i + 1 < source.size() && source[i + 1] == 'n') {
      text += '\n';
      ++i;
    } else if (source[i] == '"') {
      text += '\'';
    } else if (source[i] != ' ') {
      text += source[i];
    }
  }
  return text;
}

}  // namespace

TemplateText::TemplateText(std::string_view source)
    : source_(source), squeezed_(squeeze(source)), literals_(read_literals(source)) {}

std::string TemplateText::literal_around(std::string_view word) const {
  for (const std::string& literal : literals_) {
    if (trimmed(literal) == word) return literal;
  }
  return {};
}

std::string TemplateText::assigned(std::string_view variable) const {
  for (size_t at = source_.find(variable); at != std::string::npos;
       at = source_.find(variable, at + 1)) {
    size_t next = source_.find_first_not_of(' ', at + variable.size());
    if (next == std::string::npos || source_[next] != '=') continue;
    next = source_.find_first_not_of(' ', next + 1);
    if (next == std::string::npos || (source_[next] != '\'' && source_[next] != '"')) continue;
    std::string text = read_literal(source_, next);
    if (!text.empty()) return text;
  }
  return {};
}

TemplateText TemplateText::after_last(std::string_view word) const {
  const size_t at = source_.rfind(word);
  if (at == std::string::npos) return TemplateText({});
  // The word stands inside a tag, whose rest would read as text.
  const size_t tag_end = source_.find("%}", at);
  return TemplateText(tag_end == std::string::npos ? std::string_view{}
                                                   : std::string_view(source_).substr(tag_end + 2));
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace quern
