#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace quern {

/// Finds the tokens that are cut out of a text before merging: user-defined tokens everywhere,
/// control and unknown tokens where the caller lets markup be parsed. The leftmost and, of these,
/// the longest wins.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  /// Half-open byte range of a text in which control tokens are recognised.
  struct Range {
    size_t begin;
    size_t end;
  };
  /// A stretch of ordinary text (`id` is -1), or one token.
  struct Fragment {
    std::string_view text;
    TokenId id;
  };
  /// The fragments of `text` in order. `markup` is ascending and without overlap; a control token
  /// counts only where it lies inside one range.
  std::vector<Fragment> split(std::string_view text, std::span<const Range> markup) const;

 private:
  struct Node {
    TokenId id = -1;
    bool control = false;
    bool leaf = true;
  };
  struct Match {
    TokenId id;
    size_t length;
  };

  void insert(std::string_view text, TokenId id, bool control);
  /// The longest token at the front of `text`; a control token may take `markup_left` bytes.
  Match longest(std::string_view text, size_t markup_left) const;

  /// Node 0 is the root; the edges' key is node * 256 + byte.
  std::vector<Node> nodes_{Node{}};
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::array<bool, 256> starts_{};  ///< Bytes that some token begins with.
};

}  // namespace quern
