#include "models/tokenizer/utf8.h"

namespace quern::utf8 {
namespace {

constexpr char32_t replacement = 0xFFFD;

/// The length of the sequence that a lead byte opens (0: not a lead byte) and the range of its
/// second byte, which is what excludes overlong forms, surrogates and values above U+10FFFF.
struct Lead {
  size_t length;
  unsigned char second_low;
  unsigned char second_high;
};

Lead classify(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Step next(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const Lead lead = classify(first);
  if (lead.length == 0) return {Step::Kind::ill_formed, 1, 0};
  if (lead.length == 1) return {Step::Kind::character, 1, first};
  char32_t value = first & (0x7Fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Step::Kind::incomplete, i, 0};
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned low = i == 1 ? lead.second_low : 0x80u;
    const unsigned high = i == 1 ? lead.second_high : 0xBFu;
    if (byte < low || byte > high) return {Step::Kind::ill_formed, i, 0};
    value = (value << 6) | (byte & 0x3Fu);
  }
  return {Step::Kind::character, lead.length, value};
}

void append(std::string& text, char32_t value) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | (value >> 6));
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | (value >> 12));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | (value >> 18));
    put(0x80 | ((value >> 12) & 0x3F));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Step step = next(text.substr(at));
    if (step.kind != Step::Kind::character) break;
    at += step.length;
  }
  return at;
}

std::string sanitize(std::string_view text) {
  std::string pending(text);
  std::string result = take_complete(pending);
  if (!pending.empty()) append(result, replacement);
  return result;
}

std::string take_complete(std::string& pending) {
  std::string result;
  result.reserve(pending.size());
  const std::string_view text = pending;
  size_t at = 0;
  while (at < text.size()) {
    const Step step = next(text.substr(at));
    if (step.kind == Step::Kind::incomplete) break;
    if (step.kind == Step::Kind::character) {
      result += text.substr(at, step.length);
    } else {
      append(result, replacement);
    }
    at += step.length;
  }
  pending.erase(0, at);
  return result;
}

}  // namespace quern::utf8
