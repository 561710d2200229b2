#include "models/tokenizer/special_tokens.h"

namespace quern {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (vocabulary.types[i] == TokenType::user_defined) {
      insert(vocabulary.texts[i], id, false);
    } else if (vocabulary.is_control(id)) {
      insert(vocabulary.texts[i], id, true);
    }
  }
}

void SpecialTokens::insert(std::string_view text, TokenId id, bool control) {
  if (text.empty()) return;
  starts_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const uint64_t edge = uint64_t{node} * 256 + static_cast<unsigned char>(byte);
    const auto [entry, fresh] = edges_.try_emplace(edge, static_cast<uint32_t>(nodes_.size()));
    nodes_[node].leaf = false;
    if (fresh) nodes_.emplace_back();
    node = entry->second;
  }
  if (nodes_[node].id >= 0) return;  // The lowest id of a text that occurs twice.
  nodes_[node].id = id;
  nodes_[node].control = control;
}

SpecialTokens::Match SpecialTokens::longest(std::string_view text, size_t markup_left) const {
  Match best{-1, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size() && !nodes_[node].leaf; ++i) {
    const auto edge = edges_.find(uint64_t{node} * 256 + static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    const Node& here = nodes_[node];
    if (here.id >= 0 && (!here.control || i < markup_left)) best = {here.id, i + 1};
  }
  return best;
}

std::vector<SpecialTokens::Fragment> SpecialTokens::split(std::string_view text,
                                                          std::span<const Range> markup) const {
  std::vector<Fragment> fragments;
  size_t plain = 0;
  size_t range = 0;
  for (size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    while (range < markup.size() && markup[range].end <= at) ++range;
    const bool inside = range < markup.size() && markup[range].begin <= at;
    const Match match = longest(text.substr(at), inside ? markup[range].end - at : 0);
    if (match.id < 0) {
      ++at;
      continue;
    }
    if (at > plain) fragments.push_back({text.substr(plain, at - plain), -1});
    fragments.push_back({text.substr(at, match.length), match.id});
    at += match.length;
    plain = at;
  }
  if (plain < text.size()) fragments.push_back({text.substr(plain), -1});
  return fragments;
}

}  // namespace quern
