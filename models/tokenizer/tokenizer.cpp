#include "models/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "models/error.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/special_tokens.h"
#include "models/tokenizer/utf8.h"
#include "models/tokenizer/vocabulary.h"

namespace quern {
namespace {

constexpr size_t longest_text = size_t{1} << 30;

bool adds_bos_by_default(std::string_view pre) {
  const PreTokenizerRow* row = find_pre_tokenizer(pre);
  return row != nullptr && row->add_bos;
}

std::string unescape(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  while (!text.empty()) {
    const size_t mark = text.find(space_mark);
    plain += text.substr(0, mark);
    if (mark == std::string_view::npos) break;
    plain += ' ';
    text.remove_prefix(mark + space_mark.size());
  }
  return plain;
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  SpecialTokens special;
  std::optional<ByteLevelEncoder> byte_level;

  explicit Impl(const gguf::Metadata& metadata)
      : vocabulary(read_vocabulary(metadata, adds_bos_by_default)), special(vocabulary) {
    if (vocabulary.kind == VocabularyKind::byte_level) byte_level.emplace(metadata, vocabulary);
  }

  TokenType type(TokenId id) const { return vocabulary.types[index(id)]; }

  size_t index(TokenId id) const {
    if (id < 0 || static_cast<size_t>(id) >= vocabulary.size()) {
      throw Error(ErrorKind::usage, fmt::format("token {}", id),
                  fmt::format("it lies outside the vocabulary of {}", vocabulary.size()),
                  "use ids of this model");
    }
    return static_cast<size_t>(id);
  }

  void encode_text(std::string_view text, std::vector<TokenId>& ids) const {
    if (byte_level) {
      byte_level->encode(text, vocabulary, ids);
    } else {
      SentencePieceEncoder::encode(text, vocabulary.add_space_prefix, vocabulary, ids);
    }
  }

  std::vector<TokenId> encode(std::string_view text, std::span<const SpecialTokens::Range> markup,
                              bool add_special) const {
    if (text.size() > longest_text) {
      throw Error(ErrorKind::usage, "text", "it is longer than 1 GiB", "split it");
    }
    std::vector<TokenId> ids;
    if (add_special && vocabulary.add_bos && vocabulary.bos) ids.push_back(*vocabulary.bos);
    for (const SpecialTokens::Fragment& fragment : special.split(text, markup)) {
      if (fragment.id >= 0) {
        ids.push_back(fragment.id);
      } else {
        encode_text(fragment.text, ids);
      }
    }
    if (add_special && vocabulary.add_eos && vocabulary.eos) ids.push_back(*vocabulary.eos);
    return ids;
  }
};

Tokenizer Tokenizer::from_metadata(const gguf::Metadata& metadata) {
  return Tokenizer(std::make_unique<Impl>(metadata));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

bool Tokenizer::has_text() const {
  return impl_->vocabulary.kind != VocabularyKind::none;
}
size_t Tokenizer::vocabulary_size() const {
  return impl_->vocabulary.size();
}

const Tokenizer::Impl& Tokenizer::with_text() const {
  if (!has_text()) {
    throw Error(ErrorKind::usage, "tokenizer.ggml.model", "this model has no tokenizer",
                "give token ids with --tokens");
  }
  return *impl_;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const SpecialTokens::Range all{0, options.parse_special ? text.size() : 0};
  return with_text().encode(text, {&all, 1}, options.add_special);
}

std::vector<TokenId> Tokenizer::encode_pieces(std::span<const Piece> pieces,
                                              bool add_special) const {
  std::string text;
  std::vector<SpecialTokens::Range> markup;
  for (const Piece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    if (!piece.parse_special) continue;
    if (!markup.empty() && markup.back().end == begin) {
      markup.back().end = text.size();
    } else {
      markup.push_back({begin, text.size()});
    }
  }
  return with_text().encode(text, markup, add_special);
}

void Tokenizer::append_bytes(TokenId id, bool show_special, bool& at_start,
                             std::string& bytes) const {
  const Impl& impl = with_text();
  const Vocabulary& vocabulary = impl.vocabulary;
  const std::string& text = vocabulary.texts[impl.index(id)];
  const TokenType type = impl.type(id);
  if (vocabulary.is_control(id) || type == TokenType::user_defined) {
    if (show_special || !vocabulary.is_control(id)) bytes += text;
    at_start = true;
    return;
  }
  const bool strip = at_start && vocabulary.add_space_prefix;
  at_start = false;
  if (type == TokenType::byte) {
    // Loading checked the form <0xXX>.
    bytes += static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16));
  } else if (impl.byte_level) {
    bytes += byte_level_bytes(text);
  } else {
    const std::string plain = unescape(text);
    bytes += std::string_view(plain).substr(strip && plain.starts_with(' ') ? 1 : 0);
  }
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool show_special) const {
  std::string bytes;
  bool at_start = true;
  for (const TokenId id : ids) append_bytes(id, show_special, at_start, bytes);
  return bytes;
}

std::string Tokenizer::token_bytes(TokenId id, bool show_special) const {
  std::string bytes;
  bool at_start = false;
  append_bytes(id, show_special, at_start, bytes);
  return bytes;
}

std::optional<TokenId> Tokenizer::bos() const {
  return impl_->vocabulary.bos;
}
std::optional<TokenId> Tokenizer::eos() const {
  return impl_->vocabulary.eos;
}
bool Tokenizer::adds_bos() const {
  return impl_->vocabulary.add_bos;
}

const std::vector<TokenId>& Tokenizer::end_of_generation() const {
  return impl_->vocabulary.end_of_generation;
}

bool Tokenizer::is_control(TokenId id) const {
  impl_->index(id);
  return impl_->vocabulary.is_control(id);
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  return impl_->vocabulary.find(text);
}

std::string StreamDecoder::push(TokenId id) {
  tokenizer_->append_bytes(id, false, first_, pending_);
  return utf8::take_complete(pending_);
}

std::string StreamDecoder::finish() {
  std::string rest = utf8::sanitize(pending_);
  pending_.clear();
  first_ = true;
  return rest;
}

}  // namespace quern
