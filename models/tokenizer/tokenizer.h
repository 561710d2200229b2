#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"

namespace quern {

using TokenId = int32_t;

/// A model's tokenizer, built from the `tokenizer.ggml.*` metadata: byte-level BPE ("gpt2", with
/// the pre-tokeniser that `tokenizer.ggml.pre` names) or SentencePiece-style ("llama").
class Tokenizer {
 public:
  /// Throws Error (`bad_model`, naming the key) where the vocabulary is missing, contradictory or
  /// of a kind Quern does not know. `model` "none" gives a tokenizer without text: `has_text()` is
  /// false and encode/decode throw `usage`.
  static Tokenizer from_metadata(const gguf::Metadata& metadata);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  bool has_text() const;
  size_t vocabulary_size() const;

  struct EncodeOptions {
    bool add_special = true;     ///< BOS (and EOS) as the metadata asks.
    bool parse_special = false;  ///< Control tokens written in the text become their ids.
  };
  /// Text to ids. Bytes that are not UTF-8 are kept where the vocabulary has tokens for them:
  /// byte-level ones leave a byte without a token out, SentencePiece ones write the unknown token.
  /// Throws Error (`usage`) for texts of more than 1 GiB.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const;

  /// A part of a text, and whether control tokens written in it become their ids.
  struct Piece {
    std::string_view text;
    bool parse_special = false;
  };
  /// The ids of the pieces' joined text: merges cross from piece to piece as if there were one
  /// text, but a control token is recognised only inside a piece that allows it.
  std::vector<TokenId> encode_pieces(std::span<const Piece> pieces, bool add_special) const;

  /// Ids to bytes; control and unknown tokens are left out unless `show_special`. The space that
  /// encoding sets before a text (SentencePiece vocabularies) is taken away again. Throws Error
  /// (`usage`) where an id lies outside the vocabulary, as do the other functions that take one.
  std::string decode(const std::vector<TokenId>& ids, bool show_special = false) const;
  /// The bytes of one token inside a text.
  std::string token_bytes(TokenId id, bool show_special = false) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool adds_bos() const;
  /// Ids that end generation: EOS, EOT, EOM, and the end-of-turn tokens of the known families.
  const std::vector<TokenId>& end_of_generation() const;
  bool is_control(TokenId id) const;
  /// The id of a token by its exact text, for example "<|im_end|>".
  std::optional<TokenId> find(std::string_view text) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  const Impl& with_text() const;
  /// Appends a token's bytes; `at_start` says, before and after, whether a space that encoding
  /// would set here is still to be taken away.
  void append_bytes(TokenId id, bool show_special, bool& at_start, std::string& bytes) const;

  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of tokens into text without ever emitting part of a UTF-8 sequence: bytes of an
/// incomplete character wait for the next token; bytes that can never complete become U+FFFD. All
/// results joined are `decode` of all ids with its ill-formed parts replaced. To continue a prompt,
/// push the prompt's ids first: a SentencePiece text begins without the space of its first token.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  /// The text that became complete with this token (may be empty).
  std::string push(TokenId id);
  /// What is left at the end, with incomplete sequences replaced.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool first_ = true;
};

}  // namespace quern
