#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/tokenizer/tokenizer.h"

namespace quern {

/// `tokenizer.ggml.token_type`, with the file's own numbers.
enum class TokenType : uint8_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

enum class VocabularyKind {
  none,           ///< "none": ids only.
  byte_level,     ///< "gpt2": byte-level BPE over merges.
  sentencepiece,  ///< "llama": pieces with scores.
};

/// The tokens of a model and what the metadata says about them, checked.
struct Vocabulary {
  VocabularyKind kind = VocabularyKind::none;
  std::string pre;                 ///< `tokenizer.ggml.pre`.
  std::vector<std::string> texts;  ///< By id, as the file writes them.
  std::vector<TokenType> types;
  std::vector<float> scores;  ///< `sentencepiece` alone.
  /// Text to id; where a text occurs twice, the lowest id. Views into `texts`.
  std::unordered_map<std::string_view, TokenId> ids;
  /// The tokens of type byte by value, or -1.
  std::array<TokenId, 256> bytes{};

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unknown;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;  ///< `sentencepiece` alone.
  std::vector<TokenId> end_of_generation;

  Vocabulary() { bytes.fill(-1); }
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  size_t size() const { return texts.size(); }
  std::optional<TokenId> find(std::string_view text) const;
  /// Ordinary text: what merging may produce. Never control, unknown or byte tokens.
  bool is_text(TokenId id) const;
  /// Control and unknown tokens, which decoding leaves out.
  bool is_control(TokenId id) const;
};

/// Reads `tokenizer.ggml.*`. Throws Error (`bad_model`) that names the key at fault.
/// `default_add_bos` says whether the pre-tokeniser of that name implies a BOS token where
/// `tokenizer.ggml.add_bos_token` is absent.
Vocabulary read_vocabulary(const gguf::Metadata& metadata,
                           const std::function<bool(std::string_view pre)>& default_add_bos);

}  // namespace quern
