#pragma once

#include <string_view>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace quern {

/// U+2581, which SentencePiece writes for a space.
inline constexpr std::string_view space_mark = "\xE2\x96\x81";

/// SentencePiece-style BPE ("llama"): spaces become U+2581, and neighbours merge whose joined text
/// is a token, the best score first and leftmost first among equals. What is left and is no token
/// becomes byte tokens, or the unknown token.
class SentencePieceEncoder {
 public:
  /// Appends the ids of ordinary text, with a space set before it where `space_prefix`. Bytes that
  /// are not UTF-8 stand each for itself.
  static void encode(std::string_view text, bool space_prefix, const Vocabulary& vocabulary,
                     std::vector<TokenId>& ids);
};

}  // namespace quern
