#include "models/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/error.h"

namespace quern {
namespace {

constexpr std::string_view tokens_key = "tokenizer.ggml.tokens";
constexpr std::string_view types_key = "tokenizer.ggml.token_type";
constexpr std::string_view scores_key = "tokenizer.ggml.scores";
constexpr std::string_view model_key = "tokenizer.ggml.model";

[[noreturn]] void fail(std::string_view key, std::string_view reason) {
  throw Error(ErrorKind::bad_model, key, reason, "convert the model again");
}

VocabularyKind read_kind(const gguf::Metadata& metadata) {
  const std::string& model = metadata.get_string(model_key);
  if (model == "gpt2") return VocabularyKind::byte_level;
  if (model == "llama") return VocabularyKind::sentencepiece;
  if (model == "none") return VocabularyKind::none;
  throw Error(ErrorKind::bad_model, model_key,
              fmt::format("tokenizer kind \"{}\" is not supported", model),
              "use a model whose tokenizer is gpt2 or llama");
}

void read_tokens(const gguf::Metadata& metadata, Vocabulary& vocabulary) {
  vocabulary.texts = metadata.get_strings(tokens_key);
  const size_t count = vocabulary.texts.size();
  if (count == 0) fail(tokens_key, "the vocabulary is empty");
  if (count > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    fail(tokens_key, fmt::format("{} tokens are more than a token id can number", count));
  }
  vocabulary.ids.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    // An empty text stands for nothing; it must never be found in a prompt.
    if (!vocabulary.texts[i].empty()) {
      vocabulary.ids.emplace(vocabulary.texts[i], static_cast<TokenId>(i));
    }
  }
}

void read_types(const gguf::Metadata& metadata, Vocabulary& vocabulary) {
  const size_t count = vocabulary.size();
  vocabulary.types.assign(count, TokenType::normal);
  if (!metadata.has(types_key)) return;
  const std::vector<int64_t> types = metadata.get_ints(types_key);
  if (types.size() != count) {
    fail(types_key, fmt::format("it has {} entries for {} tokens", types.size(), count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (types[i] < 0 || types[i] > 6) {
      fail(types_key, fmt::format("token {} has type {}, which does not exist", i, types[i]));
    }
    vocabulary.types[i] = static_cast<TokenType>(types[i]);
  }
}

void read_scores(const gguf::Metadata& metadata, Vocabulary& vocabulary) {
  const std::vector<double> scores = metadata.get_floats(scores_key);
  if (scores.size() != vocabulary.size()) {
    fail(scores_key,
         fmt::format("it has {} entries for {} tokens", scores.size(), vocabulary.size()));
  }
  vocabulary.scores.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) {
      fail(scores_key, fmt::format("the score of token {} is not finite", i));
    }
    vocabulary.scores.push_back(static_cast<float>(scores[i]));
  }
}

/// The value of a byte token's text, "<0x41>", or -1.
int byte_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (const char digit : text.substr(3, 2)) {
    int nibble = 0;
    if (digit >= '0' && digit <= '9') {
      nibble = digit - '0';
    } else if (digit >= 'A' && digit <= 'F') {
      nibble = digit - 'A' + 10;
    } else if (digit >= 'a' && digit <= 'f') {
      nibble = digit - 'a' + 10;
    } else {
      return -1;
    }
    value = value * 16 + nibble;
  }
  return value;
}

void index_bytes(Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    if (vocabulary.types[i] != TokenType::byte) continue;
    const int value = byte_value(vocabulary.texts[i]);
    if (value < 0) {
      fail(tokens_key, fmt::format("token {} has type byte but is not of the form <0xXX>", i));
    }
    TokenId& slot = vocabulary.bytes[static_cast<size_t>(value)];
    if (slot < 0) slot = static_cast<TokenId>(i);
  }
}

/// The token that `key` names; where the key is absent, `fallback` if the vocabulary has a control
/// or unknown token of that number.
std::optional<TokenId> read_id(const gguf::Metadata& metadata, const Vocabulary& vocabulary,
                               std::string_view key, std::optional<TokenId> fallback = {}) {
  if (metadata.has(key)) {
    const uint64_t id = metadata.get_uint(key);
    if (id >= vocabulary.size()) {
      fail(key, fmt::format("token {} lies outside the vocabulary of {}", id, vocabulary.size()));
    }
    return static_cast<TokenId>(id);
  }
  if (fallback && static_cast<size_t>(*fallback) < vocabulary.size() &&
      vocabulary.is_control(*fallback)) {
    return fallback;
  }
  return std::nullopt;
}

/// EOS, EOT and EOM, and the end-of-turn tokens that the known families use without a key.
void collect_end_of_generation(const gguf::Metadata& metadata, Vocabulary& vocabulary) {
  std::vector<TokenId>& ends = vocabulary.end_of_generation;
  if (vocabulary.eos) ends.push_back(*vocabulary.eos);
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const auto id = read_id(metadata, vocabulary, key)) ends.push_back(*id);
  }
  for (const std::string_view text : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
                                      "<|endoftext|>", "<|end|>", "<end_of_turn>", "</s>"}) {
    const auto id = vocabulary.find(text);
    if (!id) continue;
    const TokenType type = vocabulary.types[static_cast<size_t>(*id)];
    // Gemma has a user-defined "</s>" that is an HTML tag, not an end.
    const bool may_be_text = text == "</s>";
    if (type == TokenType::control || (type == TokenType::user_defined && !may_be_text)) {
      ends.push_back(*id);
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

void read_flags(const gguf::Metadata& metadata, Vocabulary& vocabulary, bool default_add_bos) {
  vocabulary.add_bos = metadata.get_bool_or("tokenizer.ggml.add_bos_token", default_add_bos);
  vocabulary.add_eos = metadata.get_bool_or("tokenizer.ggml.add_eos_token", false);
  const bool sentencepiece = vocabulary.kind == VocabularyKind::sentencepiece;
  const bool space = metadata.get_bool_or("tokenizer.ggml.add_space_prefix", sentencepiece);
  vocabulary.add_space_prefix = sentencepiece && space;
  if (metadata.get_bool_or("tokenizer.ggml.remove_extra_whitespaces", false)) {
    throw Error(ErrorKind::bad_model, "tokenizer.ggml.remove_extra_whitespaces",
                "collapsing of white space is not supported",
                "use a model whose tokenizer keeps white space");
  }
  if (vocabulary.add_bos && !vocabulary.bos) {
    if (metadata.has("tokenizer.ggml.add_bos_token")) {
      fail("tokenizer.ggml.bos_token_id", "it is absent, yet add_bos_token asks for it");
    }
    vocabulary.add_bos = false;
  }
  if (vocabulary.add_eos && !vocabulary.eos) {
    fail("tokenizer.ggml.eos_token_id", "it is absent, yet add_eos_token asks for it");
  }
}

}  // namespace

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids.find(text);
  if (found == ids.end()) return std::nullopt;
  return found->second;
}

bool Vocabulary::is_text(TokenId id) const {
  const TokenType type = types[static_cast<size_t>(id)];
  return type == TokenType::normal || type == TokenType::user_defined ||
         type == TokenType::undefined;
}

bool Vocabulary::is_control(TokenId id) const {
  const TokenType type = types[static_cast<size_t>(id)];
  return type == TokenType::control || type == TokenType::unknown;
}

Vocabulary read_vocabulary(const gguf::Metadata& metadata,
                           const std::function<bool(std::string_view pre)>& default_add_bos) {
  Vocabulary vocabulary;
  vocabulary.kind = read_kind(metadata);
  if (vocabulary.kind == VocabularyKind::none) return vocabulary;
  const bool sentencepiece = vocabulary.kind == VocabularyKind::sentencepiece;
  vocabulary.pre = metadata.get_string_or("tokenizer.ggml.pre", "default");
  read_tokens(metadata, vocabulary);
  read_types(metadata, vocabulary);
  index_bytes(vocabulary);
  if (sentencepiece) read_scores(metadata, vocabulary);

  // The numbers that SentencePiece gives these tokens where nobody says otherwise.
  const auto usual = [sentencepiece](TokenId id) {
    return sentencepiece ? std::optional<TokenId>(id) : std::nullopt;
  };
  vocabulary.unknown = read_id(metadata, vocabulary, "tokenizer.ggml.unknown_token_id", usual(0));
  vocabulary.bos = read_id(metadata, vocabulary, "tokenizer.ggml.bos_token_id", usual(1));
  vocabulary.eos = read_id(metadata, vocabulary, "tokenizer.ggml.eos_token_id", usual(2));
  const bool has_all_bytes =
      std::find(vocabulary.bytes.begin(), vocabulary.bytes.end(), -1) == vocabulary.bytes.end();
  if (sentencepiece && !has_all_bytes && !vocabulary.unknown) {
    fail("tokenizer.ggml.unknown_token_id",
         "there is neither an unknown token nor a byte token for every byte");
  }
  read_flags(metadata, vocabulary, sentencepiece || default_add_bos(vocabulary.pre));
  collect_end_of_generation(metadata, vocabulary);
  return vocabulary;
}

}  // namespace quern
