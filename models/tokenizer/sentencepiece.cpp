#include "models/tokenizer/sentencepiece.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "models/tokenizer/utf8.h"

namespace quern {
namespace {

constexpr uint32_t none = 0xFFFFFFFFu;

/// A stretch of the text; `length` 0 marks one that was swallowed by its left neighbour.
struct Symbol {
  uint32_t begin;
  uint32_t length;
  TokenId id;  ///< -1 where the stretch is no token.
  uint32_t previous;
  uint32_t next;
};

struct Candidate {
  float score;
  uint32_t left;
  TokenId result;
  uint32_t length;  ///< Of the joined text: tells a stale candidate.

  bool operator<(const Candidate& other) const {
    // The standard heap keeps the largest in front.
    return score != other.score ? score < other.score : left > other.left;
  }
};

/// Tokens that a merge may not make are none.
TokenId text_token(std::string_view text, const Vocabulary& vocabulary) {
  const auto id = vocabulary.find(text);
  return id && vocabulary.is_text(*id) ? *id : -1;
}

std::string escape(std::string_view text, bool space_prefix) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  if (space_prefix) escaped += space_mark;
  for (const char byte : text) {
    if (byte == ' ') {
      escaped += space_mark;
    } else {
      escaped += byte;
    }
  }
  return escaped;
}

std::vector<Symbol> characters(std::string_view text, const Vocabulary& vocabulary) {
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const auto at = static_cast<uint32_t>(symbols.size());
    const utf8::Step step = utf8::next(text.substr(begin));
    const size_t length = step.kind == utf8::Step::Kind::character ? step.length : 1;
    const TokenId id = text_token(text.substr(begin, length), vocabulary);
    symbols.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(length), id,
                       at == 0 ? none : at - 1, at + 1});
    begin += length;
  }
  if (!symbols.empty()) symbols.back().next = none;
  return symbols;
}

void merge(std::string_view text, std::vector<Symbol>& symbols, const Vocabulary& vocabulary) {
  std::vector<Candidate> heap;
  heap.reserve(symbols.size());
  const auto candidate = [&](uint32_t left) -> Candidate {
    const uint32_t right = symbols[left].next;
    if (right == none) return {0, left, -1, 0};
    const uint32_t length = symbols[left].length + symbols[right].length;
    const TokenId id = text_token(text.substr(symbols[left].begin, length), vocabulary);
    if (id < 0) return {0, left, -1, 0};
    return {vocabulary.scores[static_cast<size_t>(id)], left, id, length};
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) {
    const Candidate fresh = candidate(i);
    if (fresh.result >= 0) heap.push_back(fresh);
  }
  std::make_heap(heap.begin(), heap.end());
  const auto consider = [&](uint32_t left) {
    const Candidate fresh = candidate(left);
    if (fresh.result < 0) return;
    heap.push_back(fresh);
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.length == 0 || left.next == none) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != best.length) continue;
    left.length = best.length;
    left.id = best.result;
    right.length = 0;
    left.next = right.next;
    if (left.next != none) symbols[left.next].previous = best.left;
    if (left.previous != none) consider(left.previous);
    consider(best.left);
  }
}

void append_bytes(std::string_view text, const Vocabulary& vocabulary, std::vector<TokenId>& ids) {
  const bool covered = std::all_of(text.begin(), text.end(), [&](char byte) {
    return vocabulary.bytes[static_cast<unsigned char>(byte)] >= 0;
  });
  if (!covered) {
    // Loading made sure that there is an unknown token where a byte token is missing.
    if (vocabulary.unknown) ids.push_back(*vocabulary.unknown);
    return;
  }
  for (const char byte : text) {
    ids.push_back(vocabulary.bytes[static_cast<unsigned char>(byte)]);
  }
}

}  // namespace

void SentencePieceEncoder::encode(std::string_view text, bool space_prefix,
                                  const Vocabulary& vocabulary, std::vector<TokenId>& ids) {
  const std::string escaped = escape(text, space_prefix);
  std::vector<Symbol> symbols = characters(escaped, vocabulary);
  if (symbols.empty()) return;
  merge(escaped, symbols, vocabulary);
  for (uint32_t at = 0; at != none; at = symbols[at].next) {
    if (symbols[at].id >= 0) {
      ids.push_back(symbols[at].id);
    } else {
      append_bytes(std::string_view(escaped).substr(symbols[at].begin, symbols[at].length),
                   vocabulary, ids);
    }
  }
}

}  // namespace quern
