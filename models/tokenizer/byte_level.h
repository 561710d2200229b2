#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/vocabulary.h"

namespace quern {

/// Byte-level BPE ("gpt2"): text is cut by the pre-tokeniser, each piece's bytes are written as
/// printable characters, and neighbours are merged in the order of the merge list (lowest rank
/// first, leftmost first among equals).
class ByteLevelEncoder {
 public:
  /// Reads `tokenizer.ggml.merges` and takes the row of `tokenizer.ggml.pre`. Throws Error
  /// (`bad_model`) where a merge is malformed or names a token that does not exist, or the
  /// pre-tokeniser's name is unknown.
  ByteLevelEncoder(const gguf::Metadata& metadata, const Vocabulary& vocabulary);

  /// Appends the ids of ordinary text. A byte without a token is left out, as in the models'
  /// training: some vocabularies lack control characters and bytes that never occur in UTF-8.
  void encode(std::string_view text, const Vocabulary& vocabulary, std::vector<TokenId>& ids) const;

 private:
  /// A merge of two tokens: open addressing, since it is looked up for every pair of neighbours.
  struct Merge {
    TokenId left = -1;
    TokenId right = -1;
    uint32_t rank = 0;
    TokenId result = -1;
  };
  struct Symbol;
  struct Workspace;

  void read_merges(const gguf::Metadata& metadata, const Vocabulary& vocabulary);
  void insert(const Merge& merge);
  const Merge* find(TokenId left, TokenId right) const;
  void encode_piece(std::string_view piece, const Vocabulary& vocabulary, Workspace& workspace,
                    std::vector<TokenId>& ids) const;
  /// The symbols of a piece before any merge.
  void lay_out(std::string_view piece, std::vector<Symbol>& symbols) const;
  void merge(Workspace& workspace) const;

  const PreTokenizerRow* row_;
  PreTokenizer pre_tokenizer_;
  std::vector<Merge> merges_;  ///< A power of two, at most half full.
  /// Tokens of single bytes, -1 where there is none.
  std::array<TokenId, 256> byte_ids_{};
};

/// The bytes that a token's text stands for: its characters mapped back; a character outside the
/// byte alphabet stands for itself.
std::string byte_level_bytes(std::string_view text);

}  // namespace quern
